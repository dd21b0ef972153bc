// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"strings"
)

const (
	maxQuoted = 64  // maximum number of bytes of an untrusted value in a message
	maxLine   = 240 // maximum number of characters of another program's message in a message
)

// quoted escapes, quotes, and truncates an untrusted text for a log line.
func quoted(text string) string {
	if len(text) > maxQuoted { // guard: quoted-length
		return fmt.Sprintf("%+q...", text[:maxQuoted])
	}
	return fmt.Sprintf("%+q", text)
}

// oneLine truncates a message that might contain untrusted text, and escapes all characters except printable ASCII
// characters. The result fits on one line of a log.
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
