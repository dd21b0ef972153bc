// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package hca

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"syscall"

	"github.com/rdma-spec/rdma-spec/spec/files"
)

// maxText limits the length of an attribute's value, in bytes. The kernel's own names and states are shorter than 64
// bytes.
const maxText = 128

// attributes reads the sysfs attributes in one directory. If an attribute cannot be read, its value is "", and problems
// contains the reason.
type attributes struct {
	dir tree
	// in is the prefix of attribute names in problems, such as "ports/1/"; "" for the attributes in the HCA's own
	// directory.
	in       string
	problems *problems
}

// text reads an attribute that every kernel provides.
func (a attributes) text(name string) string {
	s, err := readText(a.dir, name)
	if err != nil {
		a.problems.add("%s%s: %v", a.in, name, err)
	}
	return s
}

// optional reads an attribute that some drivers do not provide, or that cannot be read at the moment, such as the rate
// of a port that is down.
func (a attributes) optional(name string) string {
	s, err := readText(a.dir, name)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.EINVAL), errors.Is(err, errEmpty):
		return ""
	case err != nil:
		a.problems.add("%s%s: %v", a.in, name, err)
	}
	return s
}

// coded reads an attribute such as "4: ACTIVE", and returns the word after the code: "ACTIVE".
func (a attributes) coded(name string) string {
	s := a.text(name)
	if s == "" {
		return ""
	}
	code, word, ok := strings.Cut(s, ": ")
	if _, err := strconv.ParseUint(code, 10, 32); !ok || err != nil || word == "" {
		a.problems.add("%s%s: %s does not have the form \"4: ACTIVE\"", a.in, name, quote(s))
		return ""
	}
	return word
}

var errEmpty = errors.New("the attribute is empty")

// readText reads an attribute that is one line of printable ASCII text. All of the kernel's RDMA attributes have this
// form.
func readText(dir tree, name string) (string, error) {
	data, err := dir.Read(name, maxAttribute)
	if err != nil {
		return "", files.Cause(err)
	}
	s := strings.TrimSpace(strings.TrimRight(string(data), "\x00")) // tar adds the zeros: see the package comment
	switch {
	case s == "":
		return "", errEmpty
	// guard: printable attributes
	case len(s) > maxText || !printable(s):
		return "", fmt.Errorf("%s is longer than %d bytes, or is not one line of printable text", quote(s), maxText)
	}
	return s, nil
}

func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}

// validName reports whether s can be the name of an HCA or a netdev. A copy of a node can contain arbitrary names. A
// valid name is never a path, and is safe to print.
func validName(s string) bool {
	return s != "" && len(s) < 64 && s != "." && s != ".." &&
		printable(s) && !strings.ContainsAny(s, "/ \"'`\\")
}

// quote escapes and shortens a text from a node, for use in a message.
func quote(s string) string {
	const most = 40
	if len(s) > most {
		return strconv.QuoteToASCII(s[:most]) + "…"
	}
	return strconv.QuoteToASCII(s)
}

// maxProblems limits the number of problem lines for one HCA, or for the node.
const maxProblems = 16

// problems collects lines that describe problems for administrators.
type problems struct {
	lines []string
	more  int
}

func (p *problems) add(format string, args ...any) {
	// guard: number of problems
	if len(p.lines) == maxProblems {
		p.more++
		return
	}
	p.lines = append(p.lines, fmt.Sprintf(format, args...))
}

// all returns the lines. If lines were omitted, the last line contains their number.
func (p *problems) all() []string {
	if p.more == 0 {
		return p.lines
	}
	return append(p.lines, fmt.Sprintf("problems not shown: %d", p.more))
}
