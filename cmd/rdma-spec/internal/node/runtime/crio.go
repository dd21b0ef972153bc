// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec/places"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

// CRIONRIOff are the settings of CRI-O's that turn NRI off, with the value that does.
var CRIONRIOff = map[string]bool{"enable_nri": false, "nri_disable_connections": true}

// crioFile is a file of CRI-O's configuration.
type crioFile struct {
	Path string
	Tree map[string]any
}

// CRIOFiles returns the configuration of the CRI-O below a root in the order in which CRI-O reads it: crio.conf, and
// then all files of crio.conf.d in the order of their names. The last word counts.
func CRIOFiles(root string) (found []crioFile, err error) {
	folder := files.Below(root, places.CRIO.DropIns)
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot read %s: %w", folder, files.Cause(err))
	}
	paths := []string{files.Below(root, places.CRIO.Config)}
	for _, entry := range entries {
		if !entry.IsDir() {
			paths = append(paths, files.Below(root, places.CRIO.DropIns+"/"+entry.Name()))
		}
	}
	for _, path := range paths {
		text, err := files.Content(path)
		if err != nil {
			return nil, err
		}
		tree, err := tomledit.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		found = append(found, crioFile{path, tree})
	}
	return found, nil
}

// readCRIO reads what RDMA containers depend on in the files of the CRI-O below a root. NRI is on where they do not say
// otherwise, as in CRI-O 1.30.
func (r *Runtime) readCRIO(root string) error {
	files, err := CRIOFiles(root)
	if err != nil {
		return err
	}
	last := func(path ...string) (value any) { // the last word on a key, nil where there is none
		for _, file := range files {
			if said, isSaid := tomledit.Lookup(file.Tree, append([]string{"crio"}, path...)...); isSaid {
				value = said
			}
		}
		return value
	}
	listen, _ := last("api", "listen").(string) // CRI-O refuses another type
	socket, _ := last("nri", "nri_listen").(string)
	r.Known, r.Socket, r.NRI.Socket = true, cmp.Or(listen, r.Socket), cmp.Or(socket, places.NRISocket)
	for _, key := range []string{"nri_disable_connections", "enable_nri"} {
		if off := CRIONRIOff[key]; last("nri", key) == off {
			r.NRI.Off = fmt.Sprintf("%s = %v", key, off)
		}
	}
	r.NRI.On = r.NRI.Off == ""
	elements, _ := last("runtime", "default_ulimits").([]any)
	for _, element := range elements {
		name, limits, _ := strings.Cut(fmt.Sprint(element), "=") // memlock=SOFT:HARD
		soft, _, _ := strings.Cut(limits, ":")
		if bytes, err := strconv.ParseInt(soft, 10, 64); err == nil && strings.EqualFold(name, "memlock") {
			memlock := spec.LimitOf(uint64(bytes)) //nolint:gosec // -1 is unlimited
			r.DefaultMemlock = &memlock
		}
	}
	return nil
}

// HasCRIO reports whether CRI-O is installed below a root.
func HasCRIO(root string) bool {
	_, err := os.Stat(files.Below(root, filepath.Dir(places.CRIO.Config)))
	return err == nil
}
