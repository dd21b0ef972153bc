// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/rdma-spec/rdma-spec/plugin/inventory"
	"github.com/rdma-spec/rdma-spec/plugin/nritest"
	"github.com/rdma-spec/rdma-spec/plugin/podresources"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// A request that waits for the kubelet and for the first inventory waits for both within one budget, and the runtime
// gets the refusal before it loses patience, however large the budget is.
func TestDecide_OneDeadline(t *testing.T) {
	for name, test := range map[string]struct{ budget, least, most time.Duration }{
		"the default":                 {300 * time.Millisecond, 300 * time.Millisecond, 450 * time.Millisecond},
		"more than the runtime waits": {10 * time.Second, 1400 * time.Millisecond, 1800 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			nritest.LosePatience(t)
			socket := filepath.Join(scratch.Dir(t), "s")
			scratch.Socket(t, socket)                       // the kernel takes connections for the kubelet, which never answers
			hcas := inventory.New(hcatest.V100(t), quiet()) // nobody reads it
			runtime, p := registered(t, Options{
				Policy:    mustPolicy(t, "{inject: {namespaces: [ml]}, rules: [{name: any, match: {resources: [rdma/*]}}]}"),
				Inventory: hcas, Resources: podresources.New(podresources.Options{Socket: socket}), Budget: test.budget,
			})
			quickest := time.Minute
			for range 3 { // a busy machine holds everybody up now and then
				start := time.Now()
				_, err := runtime.Create(t.Context(), podIn("ml", "true"), &api.Container{Id: "container", Name: "main"})
				if err == nil || !strings.Contains(err.Error(), "the HCAs of this node have not been read yet") {
					t.Fatalf("creation: %v, want a refusal; log:\n%s", err, p.log)
				}
				quickest = min(quickest, time.Since(start))
			}
			if quickest < test.least || quickest > test.most {
				t.Errorf("the quickest of three was refused after %s, want %s to %s", quickest, test.least, test.most)
			}
		})
	}
}

// A runtime that drops the plugin between the two requests about a container asks it nothing more about this one. When
// the plugin registers again, the container is counted and named.
func TestConfirm_DroppedPlugin(t *testing.T) {
	_, p := registered(t, Options{Policy: mustPolicy(t, "{}"), StoredSpecs: &recordedSpecs{}})
	holder := verbsContainer(t, p.root)
	if _, _, err := p.CreateContainer(t.Context(), pod, holder); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := p.Synchronize(t.Context(), []*api.PodSandbox{pod}, []*api.Container{holder}); err != nil {
			t.Fatal(err)
		}
	}
	log := p.log.String()
	if n := strings.Count(log, "not confirmed"); n != 1 || !strings.Contains(log, "container=main") ||
		!strings.Contains(log, "disconnected this plugin") {
		t.Errorf("the log says %d times that it is not confirmed, want once:\n%s", n, log)
	}
	p.expectGrants(t, grantUnconfirmed)
}

// A budget above what the runtime waits for is cut, and the log says so once for each registration.
func TestConfigure_CutBudget(t *testing.T) {
	for name, test := range map[string]struct {
		budget, patience, want time.Duration
		says                   string
	}{
		"the default":       {0, 2 * time.Second, DefaultBudget, ""},
		"as much as can be": {1500 * time.Millisecond, 2 * time.Second, 1500 * time.Millisecond, ""},
		"too much": {1900 * time.Millisecond, 2 * time.Second, 1500 * time.Millisecond,
			"--budget 1.9s is lowered to 1.5s: the runtime waits only 2s"},
		"a runtime in a hurry": {900 * time.Millisecond, time.Second, 750 * time.Millisecond,
			"--budget 900ms is lowered to 750ms: the runtime waits only 1s"},
		"a runtime with patience": {5 * time.Second, 10 * time.Second, 5 * time.Second, ""},
	} {
		t.Run(name, func(t *testing.T) {
			nritest.SetPatience(t, test.patience)
			_, p := registered(t, Options{Policy: mustPolicy(t, "{}"), Budget: test.budget})
			if got := p.budget(); got != test.want {
				t.Errorf("the budget is %s, want %s", got, test.want)
			}
			if log := p.log.String(); !strings.Contains(log, test.says) || strings.Contains(log, "is lowered") != (test.says != "") {
				t.Errorf("the log does not say %q, or says too much:\n%s", test.says, log)
			}
		})
	}
}
