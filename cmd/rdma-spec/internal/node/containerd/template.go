// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package containerd

import (
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

// main returns the configuration itself, as the daemon reads it at its next start. What the platform rendered last has
// the block of the template that it had then, and the base is the rest.
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
	f.Text = tomledit.WithoutBlock(text)
	if err == nil && template != nil {
		f.Text = rendering(template, f.Text)
	}
	return f, err
}

var (
	baseAction = regexp.MustCompile(`\{\{-?\s*template\s+"base"\s+\.\s*-?\}\}`)
	blockBegin = regexp.MustCompile(`\{\{-?\s*(if|range|with|define|block)\b`)
	blockEnd   = regexp.MustCompile(`\{\{-?\s*end\b`)
	tableLine  = regexp.MustCompile(`^\s*\[[^=]*\]\s*(#.*)?$`)
)

// IncludesBase reports whether a template includes the platform's own configuration.
func IncludesBase(template []byte) bool { return baseAction.Match(template) }

// rendering returns what a platform makes of a template at its next start, as far as that is known. The base that a
// template can begin with is in the platform's program, so it is what was rendered last. What the template's own lines
// set is known, and what its actions make of others is not: they count where the file that was rendered last has all
// lines of the template but for sections at its end.
func rendering(template, rendered []byte) []byte {
	own, based, acts := literal(template)
	sections := sectionsOf(own)
	switch first := slices.IndexFunc(sections, func(s section) bool { return !s.in(rendered) }); {
	case based:
	case !acts:
		return template
	case first < 0:
		return rendered
	case !slices.ContainsFunc(sections[:first], func(s section) bool { return len(s.lines()) > 0 }):
		return []byte(own) // another template was rendered
	default:
		sections = sections[first:]
	}
	var top, end string
	now := sectionsOf(string(rendered))
	for _, s := range sections {
		switch {
		case s.in(rendered):
		case s.header == "":
			top += s.text
		default:
			now = slices.DeleteFunc(now, func(other section) bool { return other.header == s.header })
			end += s.text
		}
	}
	for _, s := range now {
		top += s.text
	}
	if top != "" && !strings.HasSuffix(top, "\n") {
		top += "\n"
	}
	return []byte(top + end)
}

// literal returns the lines of a template that no action stands in or around; whether it includes the platform's base,
// and whether it has other actions.
func literal(template []byte) (own string, based, acts bool) {
	var lines strings.Builder
	depth := 0
	for line := range strings.Lines(string(template)) {
		if baseAction.MatchString(line) {
			based = true
			continue
		}
		depth += len(blockBegin.FindAllString(line, -1))
		hasAction := strings.Contains(line, "{{")
		if !hasAction && depth == 0 {
			lines.WriteString(line)
		}
		acts = acts || hasAction
		depth -= len(blockEnd.FindAllString(line, -1))
	}
	return lines.String(), based, acts
}

// section is a table of a TOML text, by lines: its header with one kind of quotes, empty for what comes before all
// tables.
type section struct{ header, text string }

func sectionsOf(text string) []section {
	all := []section{{}}
	for line := range strings.Lines(text) {
		if tableLine.MatchString(line) {
			header, _, _ := strings.Cut(line, "]")
			all = append(all, section{header: strings.ReplaceAll(strings.TrimSpace(header), "'", `"`)})
		}
		all[len(all)-1].text += line
	}
	return all
}

// lines returns what the section says, without comments and white space around it.
func (s section) lines() (all []string) {
	for line := range strings.Lines(s.text) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "#") {
			all = append(all, line)
		}
	}
	return all
}

// in reports whether a text has such a section with all of these lines.
func (s section) in(text []byte) bool {
	return slices.ContainsFunc(sectionsOf(string(text)), func(other section) bool {
		has := other.lines()
		return other.header == s.header && !slices.ContainsFunc(s.lines(), func(line string) bool {
			return !slices.Contains(has, line) && !tableLine.MatchString(line)
		})
	})
}
