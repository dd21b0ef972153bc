// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import "testing"

func TestDidYouMean(t *testing.T) {
	known := []string{"port-active", "port-rate", "status", "doctor", "memlock", "completion"}
	for word, want := range map[string]string{
		"statsu": "status", "statu": "status", "STATUS": "status", "port-actve": "port-active", "port-state": "port-rate",
		"memlok": "memlock", "mem": "", "x": "", "": "", "something": "",
	} {
		if want != "" {
			want = `; did you mean "` + want + `"?`
		}
		if got := DidYouMean(word, known); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
}
