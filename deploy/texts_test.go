// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
	"sigs.k8s.io/yaml"
)

// texts are what people read first.
var texts = []string{"README.md", "CONTRIBUTING.md"}

// block is a fenced block of a text.
type block struct{ file, language, content string }

func blocks(t *testing.T) []block {
	t.Helper()
	fenced := regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$")
	var all []block
	for _, file := range texts {
		for _, found := range fenced.FindAllStringSubmatch(read(t, filepath.Join(root, file)), -1) {
			all = append(all, block{file, found[1], found[2]})
		}
	}
	if len(all) == 0 {
		t.Fatalf("no fenced blocks in %v", texts)
	}
	return all
}

// commands gives the lines of the texts that are to be typed into a shell.
func commands(t *testing.T) []string {
	t.Helper()
	var lines []string
	for _, b := range blocks(t) {
		if b.language == "sh" {
			lines = append(lines, strings.Split(strings.TrimSpace(b.content), "\n")...)
		}
	}
	return lines
}

func TestCommandsInTextsExist(t *testing.T) {
	p, count := newPrograms(t), 0
	makefile := read(t, filepath.Join(root, "Makefile"))
	for _, line := range commands(t) {
		words := strings.Fields(line)
		if ours, problem := p.check(line); ours {
			count++
			if problem != "" {
				t.Error(problem)
			}
		}
		if words[0] == "make" {
			for _, target := range words[1:] {
				if !strings.Contains(target, "=") && !regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(target)+`:`).MatchString(makefile) {
					t.Errorf("%q: the Makefile has no target %s", line, target)
				}
			}
		}
		for _, word := range words {
			if strings.HasPrefix(word, "deploy/") || strings.HasPrefix(word, "test/") || strings.HasPrefix(word, "./") {
				if _, err := os.Stat(filepath.Join(root, strings.TrimSuffix(word, "..."))); err != nil {
					t.Errorf("%q: %v", line, err)
				}
			}
		}
	}
	if count < 5 {
		t.Errorf("%d commands of our programs found, want more: are the blocks still marked sh?", count)
	}
}

// TestReadersInTextsRun runs the commands that only read and print, as they stand, from the repository's top folder. Those that need a
// runtime or a container are run where they are tested.
func TestReadersInTextsRun(t *testing.T) {
	p, count := newPrograms(t), 0
	for _, line := range commands(t) {
		words := strings.Fields(line)
		if words[0] != "rdma-spec" || slices.Contains([]string{"status", "repair", "verify"}, words[1]) || strings.ContainsAny(line, "><|") || slices.Contains(words, "--output") {
			continue
		}
		count++
		cmd := exec.Command("sh", "-c", line)
		cmd.Dir, cmd.Env = root, append(os.Environ(), "PATH="+p.folder+":"+os.Getenv("PATH"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%q: %v\n%s", line, err, out)
		}
	}
	if count < 5 {
		t.Errorf("%d commands run, want more: are the blocks still marked sh?", count)
	}
}

func TestBlocksInTextsParse(t *testing.T) {
	for _, b := range blocks(t) {
		var into map[string]any
		switch b.language {
		case "yaml":
			if err := yaml.UnmarshalStrict([]byte(b.content), &into); err != nil {
				t.Errorf("%s: %v:\n%s", b.file, err, b.content)
			}
		case "toml":
			if err := toml.Unmarshal([]byte(b.content), &into); err != nil {
				t.Errorf("%s: %v:\n%s", b.file, err, b.content)
			}
		case "sh", "console":
		default:
			t.Errorf("%s: a block in %s, which nobody checks:\n%s", b.file, b.language, b.content)
		}
	}
}

func TestLinksInTextsLead(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)]+)\)`)
	count := 0
	for _, file := range texts {
		text := read(t, filepath.Join(root, file))
		for _, found := range link.FindAllStringSubmatch(text, -1) {
			target, anchor, _ := strings.Cut(found[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			count++
			if target == "" {
				if !slices.Contains(anchors(text), anchor) {
					t.Errorf("%s: no heading for #%s", file, anchor)
				}
			} else if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
	if count == 0 {
		t.Error("no links found")
	}
}

// anchors gives the names under which a text's headings can be linked.
func anchors(text string) []string {
	var names []string
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		kept := regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		names = append(names, strings.ReplaceAll(kept, " ", "-"))
	}
	return names
}
