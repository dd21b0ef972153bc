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

// DefaultTemplate is what a K3s or RKE2 template begins with, so that it adds to the platform's own configuration.
const DefaultTemplate = "{{ template \"base\" . }}\n"

// Source returns the file that people write, and that the daemon's configuration is or is made of: the template that
// K3s and RKE2 read at their next start is config-v3.toml.tmpl for containerd 2.x, or config.toml.tmpl where only that
// exists; for containerd 1.x it is config.toml.tmpl.
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

// main returns the configuration itself, as the daemon reads it at its next start.
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

// rendering returns what a platform makes of a template at its next start, as far as that is known: what it rendered
// last, with the template's block and imports in place of those that it had then. Without a template, it is the base.
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
	has, _ := tomledit.Parse(text) // the daemon says what is wrong
	if _, any := has["imports"]; err != nil || template == nil || IncludesBase(template) || list == nil && !any {
		return text
	}
	if set, err := tomledit.Set(text, list, "imports"); err == nil {
		return set
	}
	return text
}

// IsRendered reports whether the platform has rendered a template, but for its block and imports, as far as that can be
// seen: what was rendered has all lines that no action stands in or around.
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

// lines returns the lines of a text without comments and white space around them.
func lines(text []byte) (all []string) {
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "#") {
			all = append(all, line)
		}
	}
	return all
}
