// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package editor plans changes of a containerd's configuration: NRI, and runtime handlers. It judges a change by the
// configuration that containerd would then load, and changes no file itself.
package editor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
)

// set is a value that a file gets, and where.
type set struct {
	path  []string
	value any
}

// goal is a change of the effective configuration.
type goal struct {
	file string // the name of a drop-in file, without folder
	// sets returns what to write into a file of a configuration version: ways to do it, the best one first.
	sets func(version int) [][]set
	// want is the effective configuration afterwards.
	want map[string]any
	// handlers is the path of the handlers in want, which say nothing where containerd prints a zero; nil where want
	// has them as printed.
	handlers []string
	relies   change.Plan // on the files that want was made from
}

// plan returns the change of files that reaches a goal, and nothing else. It tries the places for a change in turn, and
// takes the first whose effective configuration is the wanted one.
func (d Editor) plan(ctx context.Context, g goal) (change.Plan, error) {
	text, err := containerd.Contents{}.Read(d.File)
	if err != nil {
		return nil, err
	}
	version, err := d.fileVersion(ctx, text)
	if err != nil {
		return nil, err
	}
	places, err := d.places(ctx, text, g.file)
	if err != nil {
		return nil, err
	}
	var problems []string
	for _, p := range places {
		for _, sets := range g.sets(version) {
			planned, staged, err := p.write(d, version, sets)
			if err == nil {
				err = d.reaches(ctx, staged, g)
			}
			if err == nil {
				return append(planned, g.relies...), nil
			}
			if problem := p.path + ": " + err.Error(); !slices.Contains(problems, problem) {
				problems = append(problems, problem)
			}
		}
	}
	if err := g.relies.Outdated(); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("the change cannot be made: %s", strings.Join(problems, "; "))
}

// reaches reports an error where planned files do not give the wanted effective configuration.
func (d Editor) reaches(ctx context.Context, planned containerd.Contents, g goal) error {
	got, err := d.Effective(ctx, planned)
	if err != nil {
		return err
	}
	if all, exists := tomledit.Lookup(got, g.handlers...); exists && g.handlers != nil {
		table, _ := all.(map[string]any) // containerd prints a table
		put(got, notZero(table), g.handlers...)
	}
	if path := difference(got, g.want); path != "" {
		return fmt.Errorf("the effective configuration would not be right at %s", path)
	}
	return nil
}

// difference returns the dotted path of a value in which two trees differ, empty where they are the same.
func difference(a, b map[string]any) string {
	for _, key := range slices.Sorted(func(yield func(string) bool) {
		for _, tree := range []map[string]any{a, b} {
			for key := range tree {
				if !yield(key) {
					return
				}
			}
		}
	}) {
		tableA, isTableA := a[key].(map[string]any)
		tableB, isTableB := b[key].(map[string]any)
		switch {
		case isTableA && isTableB:
			if path := difference(tableA, tableB); path != "" {
				return key + "." + path
			}
		case fmt.Sprintf("%T %[1]v", a[key]) != fmt.Sprintf("%T %[1]v", b[key]):
			return key
		}
	}
	return ""
}

// fileVersion returns the configuration version that the containerd's file has, or gets where it says nothing yet.
func (d Editor) fileVersion(ctx context.Context, text []byte) (int, error) {
	tree, err := tomledit.Parse(text)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", d.File, err)
	}
	if version, written := tree["version"].(int64); written {
		return int(version), nil
	}
	if len(tree) > 0 {
		return 1, nil
	}
	native, err := d.Effective(ctx, containerd.Contents{d.File: nil})
	if err != nil {
		return 0, err
	}
	version, _ := native["version"].(int64)
	return int(max(version, 2)), nil
}

// ourDropIns are the drop-in files of all goals: what imports them imports no file of others, and the removal of one
// leaves no import of a file that is missing.
const ourDropIns = "90-rdma-spec-*.toml"

// place is a file that can take a change.
type place struct {
	path   string
	dropIn bool // a file of our own, which only says what differs
	named  bool // a drop-in that the main file does not import yet
	append bool // a template: the change goes to its end
}

// places returns the files that can take a change, the best one first. containerd 1.x does not merge what it imports,
// so there a drop-in would take away the rest of a section.
func (d Editor) places(ctx context.Context, text []byte, dropIn string) (all []place, err error) {
	version, err := d.Program.Version(ctx)
	if err != nil {
		return nil, err
	}
	patterns, err := d.Imports(text)
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(version, "1.") {
		folder, ours := d.DropIns, filepath.Join(d.Below(filepath.Join(filepath.Dir(d.File), "conf.d")), ourDropIns)
		for _, pattern := range patterns {
			if folder == "" && filepath.Base(pattern) == "*.toml" && !strings.ContainsAny(filepath.Dir(pattern), "*?[") {
				folder = filepath.Dir(pattern)
			}
		}
		switch {
		case folder != "":
			all = append(all, place{path: d.Below(filepath.Join(folder, dropIn)), dropIn: true})
		case d.Template == "":
			all = append(all, place{path: filepath.Join(filepath.Dir(ours), dropIn), dropIn: true,
				named: !slices.Contains(patterns, ours)})
		}
	}
	if d.Template != "" {
		return append(all, place{path: d.template(version), append: true}), nil
	}
	all = append(all, place{path: d.File})
	files, err := d.Imported(containerd.Contents{}, text)
	for _, file := range slices.Backward(files) {
		all = append(all, place{path: file})
	}
	return all, err
}

// template returns the template that K3s and RKE2 read: for containerd 2.x config-v3.toml.tmpl, or config.toml.tmpl
// where only that exists; for containerd 1.x config.toml.tmpl.
func (d Editor) template(version string) string {
	older := d.Below(filepath.Join(filepath.Dir(d.Template), "config.toml.tmpl"))
	if strings.HasPrefix(version, "1.") || containerd.Exists(older) && !containerd.Exists(d.Template) {
		return older
	}
	return d.Template
}

// write returns what the files become, and what containerd is to load to see it.
func (p place) write(d Editor, version int, sets []set) (planned change.Plan, staged containerd.Contents, err error) {
	staged = containerd.Contents{}
	if p.append {
		return p.writeTemplate(d, sets)
	}
	before, err := containerd.Contents{}.Read(p.path)
	if err != nil {
		return nil, nil, err
	}
	text := before
	if len(text) == 0 && p.dropIn {
		text = []byte("# Written by rdma-spec configure; rdma-spec configure --revert removes it.\n")
	}
	if text, err = versioned(text, version); err != nil {
		return nil, nil, err
	}
	file := change.File{Path: p.path, Before: before}
	if before == nil && !p.dropIn {
		file.Base = text
	}
	if text, err = setAll(text, sets); err != nil {
		return nil, nil, err
	}
	file.Content = text
	planned, staged[p.path] = change.Plan{file}, text
	if !p.named {
		return planned, staged, nil
	}
	pattern := filepath.Join(filepath.Dir(p.path), ourDropIns)
	before, err = containerd.Contents{}.Read(d.File)
	main := before
	if err == nil {
		main, err = versioned(main, version)
	}
	if err == nil {
		main, err = tomledit.Add(main, d.OnNode(pattern), "imports")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", d.File, err)
	}
	staged[d.File] = main
	return append(planned, change.File{Path: d.File, Before: before, Content: main, Serves: pattern}), staged, nil
}

// versioned returns a text with its version; one that has keys keeps what it says, or does not say.
func versioned(text []byte, version int) ([]byte, error) {
	tree, err := tomledit.Parse(text)
	if err != nil || len(tree) > 0 {
		return text, err
	}
	return tomledit.Set(text, int64(version), "version")
}

// writeTemplate adds sections to the end of a template. containerd loads what the platform has rendered last, with the
// same sections. What was added since then is in the template alone, and is not added again.
func (p place) writeTemplate(d Editor, sets []set) (change.Plan, containerd.Contents, error) {
	before, err := containerd.Contents{}.Read(p.path)
	if err != nil {
		return nil, nil, err
	}
	rendered, err := containerd.Contents{}.Read(d.File)
	if err != nil {
		return nil, nil, err
	}
	after, err := setAll(rendered, sets)
	if err != nil {
		return nil, nil, err
	}
	now := before
	if len(now) == 0 {
		now = []byte(d.TemplateBase)
	}
	added, isAdded := bytes.CutPrefix(after, rendered)
	sections := bytes.TrimLeft(added, "\n")
	switch {
	case !isAdded || !bytes.HasPrefix(sections, []byte("[")):
		return nil, nil, errors.New("the template sets the key: change it there")
	case bytes.Contains(now, sections):
		return nil, containerd.Contents{d.File: after}, nil
	case slices.ContainsFunc(headers(sections), func(header string) bool { return slices.Contains(headers(now), header) }):
		return nil, nil, errors.New("the template has the section already: restart the platform, or change it there")
	}
	if now[len(now)-1] != '\n' {
		added = append([]byte("\n"), sections...)
	}
	return change.Plan{{Path: p.path, Before: before, Content: slices.Concat(now, added)}},
		containerd.Contents{d.File: after}, nil
}

// headers returns the table headers of a text, with one kind of quotes.
func headers(text []byte) (all []string) {
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "[") {
			all = append(all, strings.ReplaceAll(line, "'", `"`))
		}
	}
	return all
}

func setAll(text []byte, sets []set) ([]byte, error) {
	for _, s := range sets {
		var err error
		if text, err = tomledit.Set(text, s.value, s.path...); err != nil {
			return nil, err
		}
	}
	return text, nil
}

// Editor plans changes of a daemon's configuration.
type Editor struct{ containerd.Daemon }

// Edit returns the editor of a daemon's configuration.
func Edit(d containerd.Daemon) Editor { return Editor{d} }
