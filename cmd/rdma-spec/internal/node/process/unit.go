// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/coreos/go-systemd/v22/unit"

	"github.com/rdma-spec/rdma-spec/spec/files"
)

// UnitDirs are the directories in which systemd finds units. If several directories contain a unit, the first one
// applies.
var UnitDirs = []string{"etc/systemd/system", "run/systemd/system", "usr/local/lib/systemd/system",
	"usr/lib/systemd/system", "lib/systemd/system"}

// HasUnit reports whether systemd finds a unit under a root, such as containerd.service.
func HasUnit(root, unit string) bool { return len(unitFiles(root, UnitDirs, unit)) > 0 }

// unitFiles returns the files of a unit in the order in which systemd reads them: the unit, and then its drop-ins
// sorted by name. If the unit itself does not exist, the result is empty.
func unitFiles(root string, dirs []string, unit string) (names []string) {
	dropIns := map[string]string{}
	for _, dir := range slices.Backward(dirs) {
		name := "/" + dir + "/" + unit
		if _, err := os.Stat(files.Below(root, name)); err == nil {
			names = []string{name}
		}
		entries, _ := os.ReadDir(files.Below(root, name+".d")) // the file is optional
		for _, entry := range entries {
			if filepath.Ext(entry.Name()) == ".conf" {
				dropIns[entry.Name()] = name + ".d/" + entry.Name()
			}
		}
	}
	if names == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(dropIns)) {
		names = append(names, dropIns[name])
	}
	return names
}

// Setting is a value of a key, and the file of the unit that sets it.
type Setting struct{ File, Value string } // File is the path on the node

// UnitSettings returns the values of a key in the section Service of a unit's files, in the order in which systemd
// reads them. An empty value discards the earlier values.
func UnitSettings(root, name, key string) (all []Setting) {
	return unitSettings(root, UnitDirs, name, "Service", key)
}

func unitSettings(root string, dirs []string, name, section, key string) (all []Setting) {
	for _, file := range unitFiles(root, dirs, name) {
		text, _ := os.ReadFile(files.Below(root, file)) // systemd ignores unreadable files
		options, _ := unit.DeserializeOptions(bytes.NewReader(text))
		for _, o := range options {
			switch {
			case o.Section != section || o.Name != key:
			case o.Value == "":
				all = nil
			default:
				all = append(all, Setting{file, strings.ReplaceAll(o.Value, "\\\n", " ")})
			}
		}
	}
	return all
}

// Starts returns the process that a unit starts according to its files, with environment variables expanded. The PID is
// 0. If the unit does not exist, the process has no arguments.
func Starts(root, unit string) Process {
	commands := UnitSettings(root, unit, "ExecStart")
	if len(commands) == 0 {
		return Process{}
	}
	environment := map[string]string{}
	set := func(assignment string) {
		if name, value, isOne := strings.Cut(assignment, "="); isOne {
			environment[name] = value
		}
	}
	for _, s := range UnitSettings(root, unit, "Environment") {
		for _, assignment := range words(s.Value) {
			set(assignment)
		}
	}
	for _, s := range UnitSettings(root, unit, "EnvironmentFile") {
		text, _ := os.ReadFile(files.Below(root, strings.TrimPrefix(s.Value, "-"))) // the file is optional
		for line := range strings.Lines(string(text)) {
			if assignment := strings.TrimSpace(line); !strings.HasPrefix(assignment, "#") {
				set(strings.Join(words(assignment), " "))
			}
		}
	}
	p := Process{OnNode: true}
	for _, word := range words(strings.TrimLeft(commands[len(commands)-1].Value, "-@:+!|")) {
		if value, isVariable := environment[strings.TrimPrefix(word, "$")]; isVariable && word[0] == '$' {
			p.Args = append(p.Args, words(value)...) // systemd splits the value
			continue
		}
		word = os.Expand(word, func(name string) string { return environment[name] })
		if word != "" {
			p.Args = append(p.Args, word)
		}
	}
	if len(p.Args) > 0 {
		p.Exe = p.Args[0]
		p.Comm = filepath.Base(p.Args[0])
	}
	return p
}

// words splits a line like systemd, at white space outside quotes. It splits bytes, because a path can be invalid
// UTF-8.
func words(line string) (all []string) {
	var word strings.Builder
	begun := false
	quote := byte(0)
	for _, b := range []byte(line) {
		switch {
		case quote != 0 && b == quote:
			quote = 0
		case quote == 0 && (b == '"' || b == '\''):
			begun = true
			quote = b
		case quote == 0 && (b == ' ' || b == '\t' || b == '\n'):
			if begun {
				all = append(all, word.String())
			}
			begun = false
			word.Reset()
		default:
			begun = true
			word.WriteByte(b)
		}
	}
	if begun {
		all = append(all, word.String())
	}
	return all
}
