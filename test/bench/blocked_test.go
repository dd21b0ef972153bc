// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

const (
	// blockedFor is how long a port's state does not answer.
	blockedFor = 5 * time.Second
	// readWithin is the time in which nri-rdma reads the state of each port anew.
	readWithin = 20 * time.Second
)

// blocked compares the creation of containers while a port's state blocks with that of as many while it does not.
func (s *setting) blocked(t testing.TB) result {
	const rounds, count = 5, 1000
	ours := s.nriRDMA(t, withoutIPCLock)
	createAll := func() (took []time.Duration) {
		for _, o := range []order{s.plain, s.holding, s.asking} {
			took = append(took, side{ours, o}.batch(t, count/3)...)
		}
		slices.Sort(took)
		return took
	}
	createAll()
	var measured []pair
	for range rounds {
		free := createAll()
		unblock := hcatest.Block(t, s.root, "sys/class/infiniband/mlx5_0/ports/1/state")
		await.Success(t, readWithin, "reading the port's state", func() error {
			if locks := scratch.Read(t, "/proc/locks"); !strings.Contains(locks, "LEASE  BREAKING") {
				return errors.New(locks)
			}
			return nil
		})
		answers := time.After(blockedFor)
		measured = append(measured, pair{ours: createAll(), theirs: free})
		select {
		case <-answers:
			t.Errorf("%d containers took longer than %s", count, blockedFor)
		default:
			<-answers
		}
		unblock()
	}
	r := result{what: "a port's state blocks for 5 s", against: "it answers"}
	return r.quantile(measured, "p99", .99, 2)
}
