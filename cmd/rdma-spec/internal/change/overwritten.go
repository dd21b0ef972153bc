// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package change

import (
	"fmt"
	"time"

	"github.com/rdma-spec/rdma-spec/spec/files"
)

// Overwriting is a file that was written by configure and that another tool has changed or removed since.
type Overwriting struct {
	Path    string    `json:"path"`    // on the node
	Feature string    `json:"feature"` // on whose behalf configure wrote it, such as "nri" or "handler rdma"
	Since   time.Time `json:"since"`   // when configure wrote it
	Missing bool      `json:"missing,omitempty"`
}

// String returns what happened, on one line.
func (o Overwriting) String() string {
	what := "changed"
	if o.Missing {
		what = "removed"
	}
	return fmt.Sprintf("another tool has %s %s since rdma-spec configure %s wrote it on %s", what, o.Path, o.Feature,
		o.Since.Format(time.DateOnly))
}

// Configured are the files that `rdma-spec configure` wrote and that somebody changed since, in the order in which it
// wrote them, but for those that are there to be edited. There are none where configure has written nothing, or has
// reverted it.
type Configured struct {
	Overwritten []Overwriting `json:"overwritten"`
}

// ReadConfigured compares the files of the node below a root with what configure has written.
func ReadConfigured(root string) (all Configured, err error) {
	l, err := Read(root)
	if err != nil {
		return all, err
	}
	for i, s := range l.steps {
		if l.later(i) || s.Editable {
			continue
		}
		now, err := current(s.Path)
		if err != nil {
			return Configured{}, err
		}
		if now != s.After {
			all.Overwritten = append(all.Overwritten, Overwriting{Path: files.OnNode(l.root, s.Path), Feature: s.Feature,
				Since: s.Time, Missing: now == ""})
		}
	}
	return all, nil
}
