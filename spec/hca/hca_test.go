// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestActive(t *testing.T) {
	down, up := Port{State: "DOWN"}, Port{State: "ACTIVE"}
	for _, tc := range []struct {
		name  string
		ports []Port
		want  bool
	}{
		{"no ports", nil, false},
		{"down", []Port{down}, false},
		{"deferred", []Port{{State: "ACTIVE_DEFER"}}, false},
		{"unreadable", []Port{{}}, false},
		{"one of two", []Port{down, up}, true},
	} {
		if got := (HCA{Ports: tc.ports}).Active(); got != tc.want {
			t.Errorf("%s: active is %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestFindLookupVerbs(t *testing.T) {
	verbs := Device{Kind: KindVerbs, Number: Number{231, 193}, HCA: "b"}
	umad := Device{Kind: KindUMAD, Number: Number{231, 1}, HCA: "b", Port: 1, Problem: "not sound"}
	cm := Device{Kind: KindRDMACM, Number: Number{10, 58}}
	b := HCA{Name: "b", Devices: []Device{umad, verbs}}
	node := &Inventory{HCAs: []HCA{{Name: "a"}, b}, RDMACM: &cm}

	if got, ok := node.Find("b"); !ok || !cmp.Equal(got, b) {
		t.Errorf("Find(b) = %v, %v", got, ok)
	}
	if got, ok := node.Find("c"); ok {
		t.Errorf("Find(c) = %v", got)
	}
	if got, ok := b.Verbs(); !ok || got != verbs {
		t.Errorf("Verbs of b = %v, %v", got, ok)
	}
	if got, ok := node.HCAs[0].Verbs(); ok {
		t.Errorf("Verbs of a = %v", got)
	}
	for _, want := range []Device{verbs, umad, cm} {
		if got, ok := node.Lookup(want.Number); !ok || got != want {
			t.Errorf("Lookup(%v) = %v, %v, want %v", want.Number, got, ok, want)
		}
	}
	for _, n := range []Number{{}, {231, 192}, {8, 0}} {
		if got, ok := node.Lookup(n); ok {
			t.Errorf("Lookup(%v) = %v, want none", n, got)
		}
	}
	if got, ok := (&Inventory{}).Lookup(Number{}); ok {
		t.Errorf("Lookup(0:0) on an empty node = %v", got)
	}
	if !verbs.Sound() || umad.Sound() {
		t.Error("a device is sound exactly if it has no problem")
	}
}

func TestDeviceFromJSON(t *testing.T) {
	for in, want := range map[string]string{
		`{"path":"/dev/x","mode":"0666"}`: "",
		`{"path":"/dev/x","mode":"0888"}`: `mode "0888" is not an octal number from 0 to 0777, such as "0666"`,
		`{"path":"/dev/x","mode":"4755"}`: `mode "4755" is not an octal number from 0 to 0777, such as "0666"`,
		`{"path":1}`:                      "json: cannot unmarshal number",
	} {
		var d Device
		err := json.Unmarshal([]byte(in), &d)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: error %v, want %q", in, err, want)
		}
	}
}

func TestCompareNatural(t *testing.T) {
	want := []string{"", "10", "ibp12s0", "mlx5", "mlx5_0", "mlx5_00", "mlx5_1", "mlx5_2", "mlx5_10",
		"mlx5_99999999999999999999999", "mlx5_100000000000000000000000", "mlx5_bond_0", "rdmap9s1", "rdmap10s0"}
	got := slices.Clone(want)
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(got), func(i, j int) { got[i], got[j] = got[j], got[i] })
	slices.SortFunc(got, compareNatural)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	for i, a := range want {
		for j, b := range want {
			if c := compareNatural(a, b); (c < 0) != (i < j) || (c == 0) != (i == j) {
				t.Errorf("compareNatural(%q, %q) = %d", a, b, c)
			}
		}
	}
}

func TestKindOf(t *testing.T) {
	for name, want := range map[string]Kind{
		"uverbs0": KindVerbs, "uverbs31": KindVerbs, "umad7": KindUMAD, "issm12": KindISSM, "rdma_cm": KindRDMACM,
		"uverbs": "", "uverbs-1": "", "uverbs0x": "", "uverbs123456": "", "abi_version": "",
		"ucm0": "", "": "", "uverbs٣": "",
	} {
		if got := kindOf(name); got != want {
			t.Errorf("kindOf(%q) = %q, want %q", name, got, want)
		}
	}
}
