// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"strings"
)

const (
	maxQuoted = 64  // bytes of an untrusted value that a message repeats
	maxLine   = 240 // characters of another program's message that a message repeats
)

// quoted prepares an untrusted text for a log line: it escapes, quotes, and truncates it.
func quoted(text string) string {
	if len(text) > maxQuoted { // guard: quoted-length
		return fmt.Sprintf("%+q...", text[:maxQuoted])
	}
	return fmt.Sprintf("%+q", text)
}

// oneLine prepares a message that may contain untrusted text for a log line: it truncates the message, and escapes all
// but printable ASCII.
func oneLine(message string) string {
	var line strings.Builder
	for _, r := range message {
		if line.Len() > maxLine { // guard: line-length
			return line.String()[:maxLine] + "..."
		}
		if r < ' ' || r > '~' { // guard: line-ascii
			line.WriteString(strings.Trim(fmt.Sprintf("%+q", r), "'"))
			continue
		}
		line.WriteRune(r)
	}
	return line.String()
}

// notPlain reports whether a character is neither printable ASCII nor YAML white space.
func notPlain(r rune) bool {
	return (r < ' ' || r > '~') && r != '\n' && r != '\t' && r != '\r'
}
