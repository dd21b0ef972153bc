// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/policy/inforce"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// A process that takes a connection over knows what the one before knew: the containers, and what they are still
// owed. The policy in force is its own from then on.
func TestHandover(t *testing.T) {
	folder := scratch.Folder(t)
	id := limitstest.ID("main")
	table := limitstest.NewKernel(map[string][]spec.Limit{id: {spec.Unlimited}})
	options := func(version string) Options {
		return Options{
			Handover: folder, Limits: limits.On(table), Publisher: &inforce.Writer{Root: folder, Version: version},
			Policy: mustPolicy(t, "{repair: {mode: report}}"),
		}
	}
	if err := os.Mkdir(folder+"/run", 0o755); err != nil {
		t.Fatal(err)
	}
	runtime, first := registered(t, options("1"))
	if state, err := first.Ready(); state != "registered" || err != nil {
		t.Errorf("ready: %s, %v", state, err)
	}
	container := verbsContainer(t, first.root)
	container.Id = id
	if _, err := runtime.Create(t.Context(), pod, container); err != nil {
		t.Fatal(err)
	}
	first.owed.put("another", promise{"ml", "train-0", "main", policy.Decision{Signal: policy.SignalDevice,
		Grant: &spec.Grant{Memlock: spec.Unlimited, IPCLock: spec.IPCLockYes,
			Devices: []hca.Device{firstVerbs(t, first.root)}}}, time.Now().Round(0)})
	before, err := first.Leave()
	if err != nil {
		t.Fatal(err)
	}
	given := options("2")
	given.Socket, given.Inventory = runtime.Socket, first.Inventory
	second := run(t, given)
	await.That(t, await.Patience, "ready to take over", func() bool {
		state, err := second.Ready()
		return state == "waiting behind a registered plugin" && err == nil
	})
	first.stop()
	await.That(t, await.Patience, "registered", second.Registered)
	after, err := second.Leave()
	if err != nil {
		t.Fatal(err)
	}
	var was, is left
	if err := json.Unmarshal(before, &was); err != nil || len(was.Repair.Containers) != 1 || len(was.Owed) != 1 {
		t.Fatalf("it knew %s: %v", before, err)
	}
	if err := json.Unmarshal(after, &is); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(was, is); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
	if now, err := inforce.Read(folder); err != nil || now.Version != "2" {
		t.Errorf("in force: %+v, %v", now, err)
	}
	if n := runtime.Connections(); n != 1 {
		t.Errorf("%d connections", n)
	}
}
