// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

func TestVerbsByNumber(t *testing.T) {
	hfi := hcatest.Files{
		"sys/dev/char/242:0": hcatest.Link("../../devices/virtual/hfi1_user/hfi1_0"),
		"sys/dev/char/242:9": hcatest.Link("../../devices/virtual/hfi1/hfi1_ui0"),
	}
	root := one().Files().With(hfi).Root(t)
	for number, want := range map[Number]Device{
		{231, 192}: {Kind: KindVerbs, Path: "/dev/infiniband/uverbs0", Number: Number{231, 192}, Mode: 0o666,
			Place: "../../devices/pci0000:5e/0000:5e:00.0/infiniband_verbs/uverbs0"},
		{242, 0}: {Kind: KindHFI1, Path: "/dev/hfi1_0", Number: Number{242, 0}, Mode: 0o666, HCA: "hfi1_0",
			Place: "../../devices/virtual/hfi1_user/hfi1_0"},
		{231, 0}:   {}, // umad
		{231, 64}:  {}, // issm
		{10, 58}:   {}, // rdma_cm
		{1, 3}:     {},
		{242, 9}:   {},
		{231, 193}: {},
		{0, 0}:     {},
	} {
		got, verbs, err := VerbsByNumber(root, number)
		if !verbs {
			got = Device{}
		}
		if diff := cmp.Diff(want, got); err != nil || verbs != (want.Path != "") || diff != "" {
			t.Errorf("%s: %v, error %v (-want +got):\n%s", number, verbs, err, diff)
		}
	}
	if _, _, err := VerbsByNumber("/", nullDevice); err != nil {
		t.Errorf("the live node: %v", err)
	}
}

// TestOpenNumbers: as long as it is not proven that numbers can be looked up, there is no answer.
func TestOpenNumbers(t *testing.T) {
	for name, test := range map[string]struct {
		files hcatest.Files
		want  string
	}{
		"not mounted":          {one().Files().Without("sys/dev"), "sys/dev/char cannot be opened (no such file or directory)"},
		"empty":                {hcatest.Files{"sys/dev/char/": ""}, "does not contain 1:3"},
		"FIFO":                 {hcatest.Files{"sys/dev/char": hcatest.FIFO}, "not a directory"},
		"file":                 {hcatest.Files{"sys/dev/char": ""}, "not a directory"},
		"link out of the root": {hcatest.Files{"sys/dev": hcatest.Link("/sys/dev")}, "escapes"},
	} {
		_, verbs, err := VerbsByNumber(test.files.Root(t), Number{231, 192})
		if verbs || err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(),
			"mount the node's /sys/dev") {
			t.Errorf("%s: %v, error %v, want %q and the remedy", name, verbs, err, test.want)
		}
	}
	if _, err := OpenNumbers(filepath.Join(scratch.Dir(t), "none")); err == nil {
		t.Error("no error for a root that is not there")
	}
}

// TestNumbersAgreeWithScan: on each named node, the link of a number leads to the same device as in the inventory.
func TestNumbersAgreeWithScan(t *testing.T) {
	for name, build := range hcatest.All {
		root := build(t)
		node, err := Scan(root)
		must.Succeed(t, err)
		for _, h := range node.HCAs {
			for _, d := range h.Devices {
				got, verbs, err := VerbsByNumber(root, d.Number)
				if err != nil || verbs != (d.Kind == KindVerbs || d.Kind == KindHFI1) || got.Path != d.Path {
					t.Errorf("%s: %s is %s, verbs %v, error %v", name, d, got, verbs, err)
				}
			}
		}
	}
}
