// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package docs is what programs know of the documentation: its address, and the pages of the doctor's checks.
package docs

import (
	"embed"
	"strings"
)

// Site is where docs is published. All addresses of it, in programs, alerts, and texts, begin with this.
const Site = "https://rdma-spec.github.io/rdma-spec/latest/"

//go:embed faults/*.md
var faults embed.FS

// FaultAddress returns the address of the page about a check of rdma-spec doctor.
func FaultAddress(check string) string { return Site + "faults/" + check }

// Fault returns that page, in Markdown.
func Fault(check string) (string, error) {
	text, err := faults.ReadFile("faults/" + check + ".md")
	return string(text), err
}

// FaultNames returns the names of the checks that have a page.
func FaultNames() (names []string) {
	entries, _ := faults.ReadDir("faults") // it is embedded
	for _, entry := range entries {
		names = append(names, strings.TrimSuffix(entry.Name(), ".md"))
	}
	return names
}

// FaultPages returns all of those pages.
func FaultPages() (pages []string) {
	for _, name := range FaultNames() {
		text, _ := Fault(name)
		pages = append(pages, text)
	}
	return pages
}
