// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"strings"
)

const (
	maxQuoted = 64  // bytes that a message repeats of one value that somebody else wrote
	maxLine   = 240 // characters that a message repeats of somebody else's message
)

// quoted prepares a text that somebody else wrote for a log line: escaped, in quotes, and short.
func quoted(text string) string {
	if len(text) > maxQuoted { // guard: quoted-length
		return fmt.Sprintf("%+q...", text[:maxQuoted])
	}
	return fmt.Sprintf("%+q", text)
}

// oneLine prepares a message that may repeat what somebody else wrote for a log line: short, and escaped where it is
// not plain ASCII.
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

// notPlain reports whether a character is neither printable ASCII nor white space as it is found in YAML.
func notPlain(r rune) bool {
	return (r < ' ' || r > '~') && r != '\n' && r != '\t' && r != '\r'
}
