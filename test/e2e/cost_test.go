// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/plugin/storedspec"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/test/node/containerd"
)

// The edit of a stored spec costs less than the creation that it is part of.
func TestEditCost(t *testing.T) {
	client := storedspec.New(storedspec.Options{Address: containerd.Socket, Budget: time.Second})
	defer client.Close()
	pod := runPod(t, containerd.Pod{})
	var creations, edits []time.Duration
	for i := range 11 {
		start := time.Now()
		id, err := pod.Create(within(t, patience), containerd.Container{Name: fmt.Sprintf("main-%d", i),
			Devices: containerd.Verbs(0)})
		if err != nil {
			t.Fatal(err)
		}
		created := time.Now()
		found, err := client.Confirm(t.Context(), id, spec.Grant{IPCLock: spec.IPCLockYes})
		if err != nil || !found.Wrote {
			t.Fatalf("found: %v, error: %v", found, err)
		}
		creations, edits = append(creations, created.Sub(start)), append(edits, time.Since(created))
	}
	slices.Sort(creations)
	slices.Sort(edits)
	creation, edit := creations[len(creations)/2], edits[len(edits)/2]
	t.Logf("p50 of a creation %s, of an edit %s: %.2f of it", creation, edit, edit.Seconds()/creation.Seconds())
	if edit > creation {
		t.Errorf("an edit takes %s where a creation takes %s", edit, creation)
	}
}
