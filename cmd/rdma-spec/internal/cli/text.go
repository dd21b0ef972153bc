// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"unicode"

	"golang.org/x/term"
)

// OrUnknown is "unknown" in place of "".
func OrUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

// IsTerminal reports whether a result goes to a terminal.
func IsTerminal(w io.Writer) bool {
	if result, ok := w.(*ResultWriter); ok {
		w = result.Writer
	}
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// PlainText makes one line of a text without what could move the cursor: texts have what files and containers have.
func PlainText(text string) string {
	return strings.Map(Printable, strings.ReplaceAll(text, "\n", " "))
}

// Printable replaces the characters that steer a terminal: somebody else may have written the manifest.
func Printable(r rune) rune {
	if r == '\n' || unicode.IsPrint(r) {
		return r
	}
	return unicode.ReplacementChar
}

var plainWord = regexp.MustCompile(`^[-A-Za-z0-9_./:,@%+=]+$`)

// ShellWord quotes a word for a shell, where it needs that.
func ShellWord(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// WriteNotes writes the first notes about a node, and how many more there are.
func WriteNotes(stderr io.Writer, notes []string) {
	const most = 10
	for i, note := range notes {
		if i == most {
			fmt.Fprintf(stderr, "rdma-spec: %d more such lines are left out\n", len(notes)-most)
			return
		}
		fmt.Fprintf(stderr, "rdma-spec: %s\n", note)
	}
}

// Counted returns a number and what is counted, in the singular or plural.
func Counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
