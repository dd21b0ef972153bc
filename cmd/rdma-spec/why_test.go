// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"testing"

	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// TestWhy_wrongChecksFirst checks that the cause comes first whose check is wrong on the node, and only where it is asked for.
func TestWhy_wrongChecksFirst(t *testing.T) {
	files := hcatest.V100Node().Files()
	files[hcatest.Dir("mlx5_0", "0000:5e:00.0")+"/ports/1/state"] = "2: INIT\n"
	root := files.Root(t)
	for _, c := range []struct {
		args  []string
		first string
		wrong bool
	}{
		{nil, "container-routes", false},
		{[]string{"--root", root}, "port-active", true},
	} {
		got := program.Call("", append([]string{"why", "ibv_modify_qp failed with error Connection timed out", "-o", "json"}, c.args...)...)
		var report struct {
			Looked bool
			Roots  []struct {
				Causes []struct {
					Page  string
					Wrong bool
				}
			}
		}
		if err := json.Unmarshal([]byte(got.Stdout), &report); err != nil || got.Status != 1 || len(report.Roots) != 1 {
			t.Fatalf("%v: %+v", err, got)
		}
		first := report.Roots[0].Causes[0]
		if first.Page != c.first || first.Wrong != c.wrong || report.Looked != c.wrong {
			t.Errorf("%q: %+v", c.args, report)
		}
	}
}
