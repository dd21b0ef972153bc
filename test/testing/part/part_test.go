// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package part

import "testing"

func testA(*testing.T)  {}
func testB(*testing.T)  {}
func testAB(*testing.T) {}

var table = Table{
	{Part: "one", Node: "main", Tests: []func(*testing.T){testA}},
	{Part: "one", Node: "core", Tests: []func(*testing.T){testB}},
	{Part: "two", Node: "all", Release: true, Tests: []func(*testing.T){testAB}},
	{Part: "older", Node: "core", Again: true, Tests: []func(*testing.T){testA}},
}

func TestTable_pattern(t *testing.T) {
	for _, test := range []struct{ parts, subtests, want string }{
		{"one", "", "^(testA|testB)$"},
		{"older", "", "^(testA)$"},
		{"older,two", "", "^(testA|testAB)$"},
		{"two", "/^sub$", "^(testAB)$/^sub$"},
		{"two", "testA", ""},
		{"three", "", ""},
		{"one,", "", ""},
	} {
		if got, err := table.pattern(test.parts, test.subtests); got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("-part %s -test.run=%s: %q, %v; want %q", test.parts, test.subtests, got, err, test.want)
		}
	}
}

func TestTable_needsOf(t *testing.T) {
	for pattern, want := range map[string]string{
		"testA":       "main",
		"testA/sub":   "main",
		"testA|testB": "core",
		"testAB":      "all release",
		"test.*":      "all release",
		"test":        "",
		"(":           "",
	} {
		if got, err := table.needsOf(pattern); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v; want %q", pattern, got, err, want)
		}
	}
}
