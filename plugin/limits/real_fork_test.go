// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"fmt"
	"testing"

	"github.com/rdma-spec/rdma-spec/spec"
)

// Ten processes fork while they are raised: none is left low. With one pass and no more, some were in eight runs of
// twelve.
func TestForkingProcess(t *testing.T) {
	const forkers, forksOfEach = 10, 30
	pid, lines := start(t, fmt.Sprintf(`j=0
		while [ $j -lt %d ]; do
			j=$((j+1))
			(
				i=0
				while [ $i -lt %d ]; do
					i=$((i+1))
					%s &
				done
				echo done
				wait
			) &
		done
		echo all fork
		wait`, forkers, forksOfEach, hang))
	p := &Processes{sessions{New("/").kernel, map[int]string{pid: idA}}}
	got := p.Raise(t.Context(), map[string]spec.Limit{idA: softWanted})[idA]
	if got.Err != nil || got.Raised < forkers+1 {
		t.Errorf("%+v: there were %d shells and more to be raised", got, forkers+1)
	}
	for range forkers {
		if !lines.Scan() {
			t.Error("the script did not go on")
		}
	}
	members, err := p.Containers()
	if err != nil {
		t.Fatal(err)
	}
	if want := 1 + forkers*(1+forksOfEach); len(members[idA]) != want {
		t.Errorf("%d processes, want %d", len(members[idA]), want)
	}
	left := 0
	for _, member := range members[idA] {
		limit, err := p.Memlock(member)
		if err != nil {
			t.Fatal(err)
		}
		if limit.Soft < softWanted {
			left++
		}
	}
	t.Logf("%d processes, %d raised, the others born raised, %d left low", len(members[idA]), got.Raised, left)
	if left > 0 {
		t.Errorf("%d processes are left low", left)
	}
}
