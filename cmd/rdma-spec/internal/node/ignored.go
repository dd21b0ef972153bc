// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/archive"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// IgnoreFile is the file in which an administrator lists known findings of the doctor.
const IgnoreFile = "/etc/rdma-spec/doctor.yaml"

// Ignored is an entry of IgnoreFile. Check and Object are globs, in which * stands for any characters.
type Ignored struct {
	Check  string `json:"check"`
	Object string `json:"object,omitempty"` // "" matches findings about the node itself
	Reason string `json:"reason"`
}

// Matches reports whether the entry matches a check's finding about an object.
func (i Ignored) Matches(check, object string) bool {
	flat := strings.NewReplacer("/", "\x00") // path.Match stops at a slash
	byCheck, _ := path.Match(i.Check, check) // the globs were checked
	byObject, _ := path.Match(flat.Replace(i.Object), flat.Replace(object))
	return byCheck && byObject
}

// String returns the entry as YAML.
func (i Ignored) String() string {
	text := "- {check: " + strconv.Quote(i.Check)
	if i.Object != "" {
		text += ", object: " + strconv.Quote(i.Object)
	}
	return text + ", reason: " + strconv.Quote(i.Reason) + "}"
}

// readIgnored reads IgnoreFile under the root. If this file does not exist, it reads IgnoreFile in the container in
// which the command runs.
func (s *Snapshot) readIgnored(context.Context, string) ([]Ignored, error) {
	text, err := s.Files.Read(strings.TrimPrefix(IgnoreFile, "/"), archive.MaxFile)
	if errors.Is(err, fs.ErrNotExist) {
		text, err = os.ReadFile(IgnoreFile)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var file struct {
		Ignore []Ignored `json:"ignore"`
	}
	if err == nil {
		err = policy.DecodeStrict(text, &file)
	}
	for n, entry := range file.Ignore {
		_, bad := path.Match(entry.Check, "")
		_, worse := path.Match(entry.Object, "")
		switch {
		case entry.Check == "" || entry.Reason == "":
			err = errors.Join(err, fmt.Errorf("ignore[%d]: \"check\" and \"reason\" are required", n))
		case bad != nil || worse != nil:
			err = errors.Join(err, fmt.Errorf("ignore[%d]: \"check\" or \"object\" is not a valid glob: to match a "+
				"bracket, write \\[", n))
		}
	}
	if err != nil && !errors.Is(err, policy.ErrNothing) {
		return nil, fmt.Errorf("%s: %s", IgnoreFile, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return file.Ignore, nil
}
