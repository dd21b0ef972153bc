// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/policy/inforce"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// A process that takes a connection over knows what the one before knew: the containers, and the grants that are not
// confirmed yet. The policy in force is its own from then on.
func TestHandover(t *testing.T) {
	dir := scratch.Dir(t, "run")
	id := limitstest.ID("main")
	table := limitstest.NewKernel(map[string][]spec.Limit{id: {spec.Unlimited}})
	options := func(version string) Options {
		return Options{
			Handover: dir, Limits: limits.On(table), Root: dir, Version: version,
			Policy: mustPolicy(t, "{}"),
		}
	}
	runtime, first := registered(t, options("1"))
	container := verbsContainer(t, first.root)
	container.Id = id
	if _, err := runtime.Create(t.Context(), pod, container); err != nil {
		t.Fatal(err)
	}
	grant := spec.Grant{Memlock: 1 << 30, IPCLock: spec.IPCLockYes, Devices: []hca.Device{firstVerbs(t, first.root)}}
	want := newPendingGrant(policy.Container{Namespace: "ml", Pod: "train-0", Name: "main"}, policy.Decision{Grant: &grant,
		Signal: policy.SignalDevice, Evidence: "/dev/infiniband/uverbs0", Rule: "default", LeftOut: []string{"mlx5_1 (DOWN)"}})
	first.confirmer.pending.add("another", want)
	before, err := first.State()
	must.Succeed(t, err)
	given := options("2")
	given.Socket, given.Inventory = runtime.Socket, first.Inventory
	second := run(t, given)
	await.That(t, await.Timeout, "ready to take over", func() bool { return notReady(second) == nil })
	first.stop()
	await.That(t, await.Timeout, "registered", second.Registered)
	after, err := second.State()
	must.Succeed(t, err)
	var was, is state
	if err := json.Unmarshal(before, &was); err != nil || len(was.Pending) != 1 {
		t.Fatalf("it knew %s: %v", before, err)
	}
	must.Succeed(t, json.Unmarshal(after, &is))
	if diff := cmp.Diff(was, is, cmpopts.IgnoreTypes(time.Duration(0))); diff != "" { // ages
		t.Errorf("(-before +after):\n%s", diff)
	}
	got, found := second.confirmer.pending.take("another")
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(pendingGrant{}, "Since")); diff != "" || !found || got.Since.IsZero() {
		t.Errorf("pending: %t, since %s (-want +got):\n%s", found, got.Since, diff)
	}
	await.That(t, await.Timeout, "its policy is published", func() bool {
		now, err := inforce.Read(dir)
		return err == nil && now.Version == "2"
	})
	if n := runtime.Connections(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// TestState: whatever changes the golden file needs another registration.StateFormat, so that a process of another
// version does not go on with what it cannot read.
func TestState(t *testing.T) {
	below := 7
	grant := newPendingGrant(policy.Container{Namespace: "ml", Pod: "train-0", Name: "main"}, policy.Decision{
		Signal: policy.SignalAnnotation, Evidence: policy.AnnotationKey, Rule: "default",
		Grant: &spec.Grant{Memlock: spec.Unlimited, IPCLock: spec.IPCLockUnlessDropped,
			Devices: []hca.Device{firstVerbs(t, hcatest.V100(t))}}})
	golden.Compare(t, "testdata/state.json", golden.JSON(t, state{
		Pending: map[string]pendingGrant{"container": grant},
		Policy:  &inforce.Left{Source: "a file", Text: "memlock: 1Gi"},
		Below:   &below,
	}))
	for _, left := range []string{"", "[]", `{"pending":"x"}`} {
		if goOn, err := (&Plugin{}).Restore(json.RawMessage(left)); goOn != nil || err == nil {
			t.Errorf("%q is taken for a state", left)
		}
	}
}

// FuzzRestore: whatever a process has left, the next one goes on with it or says why not.
func FuzzRestore(f *testing.F) {
	f.Add([]byte(`{"pending":{"a":{"grant":{"memlock":"1Gi"}}}}`))
	f.Fuzz(func(_ *testing.T, left []byte) {
		p := unregistered(Options{Limits: limits.On(limitstest.NewKernel(nil))})
		if goOn, err := p.Restore(left); err == nil {
			goOn()
		}
	})
}
