// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"os"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
)

// The plugin asks what the runtime at the other end of its connection can start, gives no more than that, and says so;
// the validator is content with it.
func TestRuntimeThatMayNotRaiseLimits(t *testing.T) {
	const most = 8 << 20
	var asked []int
	startable := func(runtime int) (spec.Limit, error) {
		asked = append(asked, runtime)
		return most, nil
	}
	runtime, p := registered(t, Options{Policy: mustPolicy(t, "{}"), Startable: startable})
	run(t, Options{Socket: runtime.Socket, Policy: mustPolicy(t, "{}"), Validate: true, Inventory: p.Inventory,
		Startable: func(int) (spec.Limit, error) { return most, nil }})
	await.That(t, await.Patience, "both registered", func() bool { return runtime.Synchronised() == 2 })
	got, err := runtime.Create(t.Context(), pod, verbsContainer(t, p.root))
	if err != nil || len(got.GetRlimits()) != 1 || got.GetRlimits()[0].GetHard() != most {
		t.Errorf("creation: %v, %v", got.GetRlimits(), err)
	}
	for _, want := range []string{"the runtime may not raise limits", "memlock is cut from unlimited to 8Mi"} {
		if !strings.Contains(p.log.String(), want) {
			t.Errorf("the log does not say %q:\n%s", want, p.log)
		}
	}
	asking := &api.PodSandbox{Id: "sandbox", Name: "train-0", Namespace: "ml",
		Annotations: map[string]string{policy.AnnotationKey: "{memlock: 1Gi}"}}
	if _, err := runtime.Create(t.Context(), asking, verbsContainer(t, p.root)); err == nil ||
		!strings.Contains(err.Error(), "no container with more than 8Mi can start") {
		t.Errorf("the annotation's own number: %v", err)
	}
	if len(asked) != 1 || asked[0] != os.Getpid() { // NRI's side runs in this process
		t.Errorf("asked about the processes %v, want %d", asked, os.Getpid())
	}
}
