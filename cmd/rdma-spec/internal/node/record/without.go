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

// Changed means that a change cannot be reverted, because the file was changed again later.
type Changed struct {
	Feature, Path string
	Cause         error // why the feature's parts cannot be removed; nil if the whole file belongs to the feature
}

// Error implements error.
func (c *Changed) Error() string {
	why := ""
	if c.Cause != nil {
		why = " (" + c.Cause.Error() + ")"
	}
	return fmt.Sprintf("%s has changed since rdma-spec configure %s wrote it, so it is kept%s: remove the file or "+
		"the added lines manually, and then delete the record with --forget", c.Path, c.Feature, why)
}

// Without returns the contents, by path, that files of containerd would have without these features. If no features are
// given, it assumes all features. A file that belongs to a removed feature as a whole has the content nil.
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

// Without returns a file's content without features, and the file's entry with the remaining features.
func (e Entry) Without(now []byte, gone func(feature string) bool) (content []byte, rest Entry, err error) {
	rest = e
	rest.Feature = ""
	rest.Parts = slices.DeleteFunc(slices.Clone(e.Parts), func(p Part) bool { return gone(p.Feature) })
	if len(rest.Features()) == 0 {
		rest.Parts = nil // companions have no siblings left, or belong to others
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
		return nil, e, fmt.Errorf("%[1]s, the backup of %[2]s, is missing: correct %[2]s manually, and delete the record "+
			"with --forget", e.Backup, e.Path)
	case isOurs:
		return before, rest, nil
	case now == nil, files.Same(now, before), e.Editable:
		return now, rest, nil
	}
	return nil, e, changed
}

// withoutParts returns a shared file's content without features. Parts that remaining features share are kept.
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
	if e.Made { // the rest of the block belongs to others
		content = orNone(content)
	}
	return content, nil
}
