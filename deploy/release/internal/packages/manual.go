// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"bytes"
	"fmt"
	"strings"
	"time"
)

// Section is a part of a manual page: a command and what it prints about itself.
type Section struct{ Command, Help string }

// Manual returns a manual page in roff that shows the help of a program's commands as it is printed.
func Manual(name string, chapter int, summary, version string, date time.Time, sections []Section) []byte {
	var page bytes.Buffer
	fmt.Fprintf(&page, ".TH %s %d %s %q\n", roff(strings.ToUpper(name)), chapter,
		date.UTC().Format(time.DateOnly), "rdma-spec "+version)
	fmt.Fprintf(&page, ".SH NAME\n%s \\- %s\n", roff(name), roff(summary))
	for _, s := range sections {
		fmt.Fprintf(&page, ".SH %s\n.nf\n%s\n.fi\n", roff(strings.ToUpper(s.Command)), roff(strings.TrimSpace(s.Help)))
	}
	return page.Bytes()
}

// roff writes a text so that roff shows it as it is.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	var lines []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			line = `\&` + line
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "")
}
