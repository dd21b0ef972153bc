// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pages provides the code blocks of the documentation, and runs blocks of commands as a reader does: each block
// as a whole, without changes.
//
// The mark of a block of commands follows the block's language, and says what runs the block. If there is no mark, the
// tests in docs run it. If the mark is the name of a test, this test runs it, on a machine that has what the commands
// need. If the mark is a reason in parentheses, no test runs it.
package pages

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Block is a fenced code block of a page.
type Block struct {
	File           string // relative to the repository's top directory
	Line           int    // the line of its opening fence, from 1
	Language, Mark string
	Content        string
}

func (b Block) String() string { return fmt.Sprintf("%s:%d", b.File, b.Line) }

// Lines returns a block's lines.
func (b Block) Lines() []string { return strings.Split(strings.TrimSpace(b.Content), "\n") }

// Fence matches a fenced code block. Its groups are the indentation, the info string, and the content.
var Fence = regexp.MustCompile("(?ms)^( *)```([^\n]*)\n(.*?)^ *```$")

// Blocks returns the code blocks in the text of a page.
func Blocks(file, text string) (all []Block) {
	for _, at := range Fence.FindAllStringSubmatchIndex(text, -1) {
		part := func(i int) string { return text[at[2*i]:at[2*i+1]] }
		language, mark, _ := strings.Cut(part(2), " ")
		all = append(all, Block{
			File: file, Line: 1 + strings.Count(text[:at[0]], "\n"), Language: language, Mark: mark,
			Content: regexp.MustCompile("(?m)^"+part(1)).ReplaceAllString(part(3), ""),
		})
	}
	return all
}

// Files returns the paths of the pages relative to the repository's top directory: those in that directory, and those
// in docs.
func Files(top string) (files []string, err error) {
	for _, pattern := range []string{"*.md", "docs/*.md"} {
		found, err := filepath.Glob(filepath.Join(top, pattern))
		if err != nil {
			return nil, err
		}
		for _, file := range found {
			name, err := filepath.Rel(top, file)
			if err != nil {
				return nil, err
			}
			files = append(files, name)
		}
	}
	return files, nil
}

// Marked returns the blocks that are marked with a test's name, in the order of the pages.
func Marked(t testing.TB, top, test string) (all []Block) {
	t.Helper()
	files, err := Files(top)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(top, file))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, slices.DeleteFunc(Blocks(file, string(text)), func(b Block) bool {
			return b.Language != "sh" || b.Mark != test
		})...)
	}
	if len(all) == 0 {
		t.Fatalf("no page has a block that is marked %s", test)
	}
	return all
}

// Failure is a command of a block that failed.
type Failure struct {
	Command string
	Status  int
}

// Shell runs blocks.
type Shell struct {
	Dir         string
	Environment []string
	// Here replaces what readers must fill in, such as the name of a node.
	Here *strings.Replacer
}

// Run runs a block to its end. It returns the block's output, and the commands that failed.
func (s Shell) Run(ctx context.Context, b Block) (output string, failed []Failure, err error) {
	content := b.Content
	if s.Here != nil {
		content = s.Here.Replace(content)
	}
	told, tell, err := os.Pipe()
	if err != nil {
		return "", nil, err
	}
	defer told.Close() //nolint:errcheck // it was read whole
	cmd := exec.CommandContext(ctx, "bash", "-c", `trap 'echo "$? $BASH_COMMAND" >&3' ERR`+"\n"+content)
	cmd.Dir = s.Dir
	cmd.Env = s.Environment
	cmd.ExtraFiles = []*os.File{tell}
	failures := make(chan string)
	go func() {
		text, _ := io.ReadAll(told) // if this fails, the text is empty, and the exit status shows whether a command failed
		failures <- string(text)
	}()
	out, err := cmd.CombinedOutput()
	_ = tell.Close() // the shell has a copy
	for line := range strings.Lines(<-failures) {
		status, command, _ := strings.Cut(strings.TrimSpace(line), " ")
		number, notOne := strconv.Atoi(status)
		if notOne != nil { // this line continues the previous command
			continue
		}
		failed = append(failed, Failure{command, number})
	}
	if len(failed) > 0 {
		err = nil // a nonzero status only repeats that the last command failed
	}
	return string(out), failed, err
}
