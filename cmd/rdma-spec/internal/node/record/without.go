// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

// Changed is the error where a change cannot be taken back, since somebody else has changed the file later.
type Changed struct {
	Feature, Path string
	Cause         error // why the feature's parts cannot be taken out; nil where the file is the feature's as a whole
}

// Error implements error.
func (c *Changed) Error() string {
	why := ""
	if c.Cause != nil {
		why = " (" + c.Cause.Error() + ")"
	}
	return fmt.Sprintf("%s has changed since rdma-spec configure %s wrote it, so the file is kept%s: manually remove "+
		"the file, or the lines that rdma-spec added to it, and drop the record with --forget", c.Path, c.Feature, why)
}

// Without returns what files that a containerd reads would be without features, by their paths; of all features where
// none is named. Those that are a feature's as a whole would not be there.
func (r *Record) Without(features ...string) (map[string][]byte, error) {
	gone := func(feature string) bool { return len(features) == 0 || slices.Contains(features, feature) }
	all := map[string][]byte{}
	for _, e := range r.Files {
		if !slices.ContainsFunc(e.Features(), gone) {
			continue
		}
		if e.Feature != "" {
			if filepath.Ext(e.Path) == ".toml" {
				all[e.Path] = nil
			}
			continue
		}
		now, err := files.Content(e.Path)
		if err == nil {
			all[e.Path], _, err = e.Without(now, gone)
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Without returns what a file becomes without features, and its entry with those that are left.
func (e Entry) Without(now []byte, gone func(feature string) bool) (content []byte, rest Entry, err error) {
	rest = e
	rest.Feature = ""
	rest.Parts = slices.DeleteFunc(slices.Clone(e.Parts), func(p Part) bool { return gone(p.Feature) })
	if len(rest.Features()) == 0 {
		rest.Parts = nil // companions have nothing beside them any longer, or are others'
	}
	changed := &Changed{Path: e.Path, Feature: e.Features()[slices.IndexFunc(e.Features(), gone)]}
	if e.Feature == "" {
		content, changed.Cause = e.withoutParts(now, gone, rest.Parts)
		if changed.Cause != nil {
			return nil, e, changed
		}
		return content, rest, nil
	}
	var before []byte
	if e.Backup != "" {
		before, err = files.Content(e.Backup)
	}
	switch isOurs := slices.Contains(e.Written, Sum(now)); {
	case err != nil:
		return nil, e, err
	case isOurs && before == nil && e.Backup != "":
		return nil, e, fmt.Errorf("%s, the backup of %s, is missing: correct the file manually, and drop the record with "+
			"--forget", e.Backup, e.Path)
	case isOurs:
		return before, rest, nil
	case now == nil, files.Same(now, before), e.Editable:
		return now, rest, nil
	}
	return nil, e, changed
}

// withoutParts returns what a file that others write becomes without features, but for what others of ours share.
func (e Entry) withoutParts(now []byte, gone func(feature string) bool, rest []Part) ([]byte, error) {
	if now == nil {
		return nil, nil
	}
	going := slices.DeleteFunc(slices.Clone(e.Parts), func(p Part) bool {
		return !p.Companion() && (!gone(p.Feature) || slices.ContainsFunc(rest, p.SameAs))
	})
	content, err := withoutParts(now, going)
	if err != nil || len(rest) > 0 {
		return content, err
	}
	content = tomledit.WithoutMarks(content)
	if e.Made { // what is left in the block is others'
		content = orNone(content)
	}
	return content, nil
}
