// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"context"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
)

// DefaultTemplate is the first line of a K3s or RKE2 template that extends the platform's own configuration.
const DefaultTemplate = "{{ template \"base\" . }}\n"

// Source returns the file that people edit: the daemon's configuration, or the template that K3s and RKE2 read at their
// next start. The template is config-v3.toml.tmpl for containerd 2.x, or config.toml.tmpl if only this file exists. For
// containerd 1.x, the template is config.toml.tmpl.
func (d Daemon) Source(ctx context.Context, planned Contents) (string, error) {
	if d.Template == "" {
		return d.File(), nil
	}
	older := d.Below(filepath.Join(filepath.Dir(d.Template), "config.toml.tmpl"))
	version, err := d.Program.Version(ctx)
	if err != nil {
		return "", err
	}
	is := func(path string) bool {
		text, err := planned.Read(path)
		return text != nil || err != nil
	}
	if IsOld(version) || is(older) && !is(d.Template) {
		return older, nil
	}
	return d.Template, nil
}

// main returns the main configuration, in the state at the daemon's next start.
func (d Daemon) main(ctx context.Context, planned Contents) (File, error) {
	f := File{Name: d.Config, Path: d.File()}
	text, err := planned.Read(f.Path)
	f.Text = text
	if err != nil || d.Template == "" || d.Program == nil {
		return f, err
	}
	source, err := d.Source(ctx, planned)
	if err != nil {
		return f, err
	}
	template, err := planned.Read(source)
	f.Text = rendering(template, text)
	return f, err
}

var (
	baseAction = regexp.MustCompile(`\{\{-?\s*template\s+"base"\s+\.\s*-?\}\}`)
	blockBegin = regexp.MustCompile(`\{\{-?\s*(if|range|with|define|block)\b`)
	blockEnd   = regexp.MustCompile(`\{\{-?\s*end\b`)
)

// IncludesBase reports whether a template includes the platform's own configuration.
func IncludesBase(template []byte) bool { return baseAction.Match(template) }

// rendering returns the configuration that a platform will render from a template at its next start, as far as it is
// known. The result is the last rendered configuration, with the template's current block and imports. Without a
// template, the result is the base.
func rendering(template, rendered []byte) []byte {
	if template != nil && !bytes.Contains(template, []byte("{{")) {
		return template
	}
	text := tomledit.WithoutBlock(rendered)
	if block := tomledit.Block(template); block != nil {
		text = tomledit.WithBlock(text, block)
	}
	says, err := tomledit.Parse(template)
	list, _ := says["imports"].([]any)
	has, _ := tomledit.Parse(text) // the daemon reports errors
	if _, any := has["imports"]; err != nil || template == nil || IncludesBase(template) || list == nil && !any {
		return text
	}
	if set, err := tomledit.Set(text, list, "imports"); err == nil {
		return set
	}
	return text
}

// IsRendered reports whether the rendered configuration matches a template, except for the template's block and
// imports. As a heuristic, the configuration must contain all of the template's lines without actions.
func IsRendered(template, rendered []byte) bool {
	if !bytes.Contains(template, []byte("{{")) && template != nil {
		return true
	}
	rest := tomledit.WithoutBlock(template)
	if without, err := tomledit.Delete(rest, "imports"); err == nil {
		rest = without
	}
	has := lines(tomledit.WithoutBlock(rendered))
	depth := 0
	for _, line := range lines(rest) {
		depth += len(blockBegin.FindAllString(line, -1))
		if depth == 0 && !strings.Contains(line, "{{") && !slices.Contains(has, line) {
			return false
		}
		depth -= len(blockEnd.FindAllString(line, -1))
	}
	return rendered != nil
}

// lines returns the lines of a text without comments, empty lines, and surrounding white space.
func lines(text []byte) (all []string) {
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "#") {
			all = append(all, line)
		}
	}
	return all
}
