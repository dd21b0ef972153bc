// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// An HCA that does not answer, twice, costs its own patience. It is wrong, what depends on it is skipped, and the others
// are looked at.
func TestHCAThatDoesNotAnswer(t *testing.T) {
	files := healthyNode().With(hcatest.Files{at(3) + "/ports/1/state": "1: DOWN\n",
		at(3) + "/ports/1/counters/link_downed": "1\n"})
	root := files.Root(t)
	unblock := hcatest.Block(t, root, at(1)+"/ports/1/state")
	s, err := node.Open(node.Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	start := time.Now()
	all := doctor.Run(t.Context(), s, checks())
	took := time.Since(start)
	unblock()
	if took < node.Patience || took > 2*node.Patience {
		t.Errorf("it took %s", took)
	}
	var of []string
	for _, f := range all {
		if strings.HasPrefix(f.Object, "HCA mlx5_1") || f.Status == doctor.Wrong {
			of = append(of, f.Check+" "+string(f.Status)+" "+f.Object)
		}
	}
	if of[0] != "hca-answers wrong HCA mlx5_1" || !slices.Contains(of, "port-active wrong HCA mlx5_3 port 1") ||
		!slices.Contains(of, "port-active skipped HCA mlx5_1") {
		t.Errorf("%q", of)
	}
	for _, line := range of[1:] {
		if strings.HasSuffix(line, "HCA mlx5_1") != strings.Contains(line, " skipped ") {
			t.Error(line)
		}
	}
}

// Where the reader of HCAs is late because the node is slow, nothing is wrong with its HCAs.
func TestSlowReader(t *testing.T) {
	s := open(t, healthyNode())
	s.Patience = 300 * time.Millisecond
	s.ReadHCAs = func(names []string) <-chan hca.HCA {
		time.Sleep(2 * s.Patience)
		answers := make(chan hca.HCA, len(names))
		for _, name := range names {
			answers <- hca.HCA{Name: name}
		}
		return answers
	}
	all, err := s.HCAs()
	if err != nil || len(all.HCAs) != 6 {
		t.Fatal(all, err)
	}
	for _, h := range all.HCAs {
		if h.Unread != "" {
			t.Errorf("%+v", h)
		}
	}
}
