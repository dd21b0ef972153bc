// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
)

// faultsPage is the page that findings link to.
const faultsPage = "../../docs/faults.md"

// familyTitles are the headings of the families, in the page.
var familyTitles = map[string]string{
	"hca": "HCAs and ports", "modules": "Kernel modules", "devices": "Devices",
	"netns": "Network namespaces", "gpu": "GPUs",
	"kernel log": "The kernel log", "memory": "Memory", "runtime": "Container runtimes",
	"nri": "NRI", "plugin": "The plugin",
	"cdi": "CDI files", "containers": "Containers", "kubelet": "The kubelet",
}

// TestFaultsPage checks that the page has every message and every check. -update writes them.
func TestFaultsPage(t *testing.T) {
	page := readFile(t, faultsPage)
	generated := regexp.MustCompile(`(?s)(<!-- checks: [^\n]* -->\n).*(<!-- end -->\n)`)
	if !generated.MatchString(page) {
		t.Fatalf("%s has no part between its two comments", faultsPage)
	}
	var text strings.Builder
	writeMessages(&text)
	family := ""
	for _, c := range checks() {
		if c.Family != family {
			family = c.Family
			if familyTitles[family] == "" {
				t.Errorf("the family %q has no title", family)
			}
			fmt.Fprintf(&text, "\n## %s\n", familyTitles[family])
		}
		writeCheck(&text, c)
	}
	golden.Compare(t, faultsPage, generated.ReplaceAllString(page,
		"${1}"+strings.ReplaceAll(text.String(), "$", "$$")+"\n${2}"))
}

// writeMessages writes the table of messages, each with the checks that may find its cause.
func writeMessages(text *strings.Builder) {
	causes := map[string][]string{}
	for _, c := range checks() {
		for _, message := range c.Messages {
			causes[message] = append(causes[message], fmt.Sprintf("[%s](#%s)", c.ID, c.ID))
		}
	}
	text.WriteString("\n## Messages\n\n| you see | checks that find its cause |\n|---|---|\n")
	messages := slices.SortedFunc(maps.Keys(causes),
		func(a, b string) int { return strings.Compare(strings.ToLower(a), strings.ToLower(b)) })
	for _, message := range messages {
		fmt.Fprintf(text, "| %s | %s |\n", code(message), strings.Join(causes[message], ", "))
	}
}

func writeCheck(text *strings.Builder, c doctor.Check) {
	fmt.Fprintf(text, "\n### %s\n\n%s\n\nWhy a fault matters: %s\n", c.ID, c.Title, c.Why)
	if len(c.Messages) > 0 {
		text.WriteString("\nIf this check fails, people see:\n\n")
		for _, message := range c.Messages {
			fmt.Fprintf(text, "- %s\n", code(message))
		}
	}
	if len(c.Needs) > 0 {
		var needed []string
		for _, id := range c.Needs {
			needed = append(needed, fmt.Sprintf("[%s](#%s)", id, id))
		}
		fmt.Fprintf(text, "\nIt is skipped if one of these checks fails: %s.\n", strings.Join(needed, ", "))
	}
}

// code is a message in Markdown, also in a table.
func code(message string) string {
	return "`" + strings.ReplaceAll(strings.ReplaceAll(message, "`", "'"), "|", `\|`) + "`"
}

// TestFaultsAreKnown checks that what people search for, as public issues have it, is in the page.
func TestFaultsAreKnown(t *testing.T) {
	page := readFile(t, faultsPage)
	for _, message := range []string{
		"Couldn't allocate MR", "Couldn't register MR", "ibv_create_cq() failed: Cannot allocate memory",
		"although the pod adds IPC_LOCK", "Bad address",
		"GPU Direct RDMA Disabled for HCA", "could not insert 'nvidia_peermem': Invalid argument", "vendor err 81",
		"Port number 1 state is Down",
		"GUID is not valid", "incorrect RDMA subsystem network namespace", "Failed to query GID", "No data available",
		"rdma_create_ep: No such device",
		"vendor err 129", "IBV_WC_LOC_LEN_ERR", "lstat /dev/infiniband/", "RDMA device \"rdma_cm\" not found",
		"RDMA device \"issm\" not found", "allocatable 0",
		"Failed loading kernel module mlx5_ib", "driver is in use", "does not support the kernel ABI of 6",
		"No IB devices found", "ibv_open_device failed",
		"Using network Socket", "fi_getinfo: -61", "fi_mr_reg", "ibv_reg_mr_iova2",
		"unknown service runtime.v1.RuntimeService", "nri.sock: no such file",
		"1024 open files", "RDMA is gone after an upgrade",
	} {
		if !strings.Contains(page, message) {
			t.Errorf("nobody finds %q", message)
		}
	}
}

// TestFindingsLinkToThePage checks that each finding's anchor is a heading.
func TestFindingsLinkToThePage(t *testing.T) {
	page := readFile(t, faultsPage)
	for _, c := range checks() {
		if !strings.Contains(page, "\n### "+c.ID+"\n") || !regexp.MustCompile(`^[a-z0-9-]+$`).MatchString(c.ID) {
			t.Errorf("%s has no heading, or one with another anchor", c.ID)
		}
	}
}
