// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/output"
)

// recordedSpecs is a StoredSpecs that records what it is asked for.
type recordedSpecs struct {
	fails error

	mu   sync.Mutex
	left time.Duration // until the deadline of the last call; 0: it had none
}

func (r *recordedSpecs) Confirm(ctx context.Context, _ string, grant spec.Grant) (storedspec.Found, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if deadline, ok := ctx.Deadline(); ok {
		r.left = time.Until(deadline)
	}
	return storedspec.Found{Memlock: spec.Rlimit{Soft: grant.Memlock, Hard: grant.Memlock},
		IPCLock: grant.IPCLock != spec.IPCLockNo}, r.fails
}

// The container has its memlock all the same, so a failed edit costs it nothing but the capability. It is counted and
// named, never called a success, and the warning says whether it is made yet: repair tries again.
func TestConfirm_FailedEdit(t *testing.T) {
	const patience = "plugin_request_timeout"
	silent := errors.New("containerd did not respond within 300ms")
	for name, test := range map[string]struct {
		config string
		fails  error
		says   []string
	}{
		"no answer": {"{}", silent, []string{"recreate the pod", patience}},
		"the task was there first": {"{}", storedspec.ErrStarted, []string{"started later with exec get the missing part", "recreate the " +
			"pod"}},
	} {
		t.Run(name, func(t *testing.T) {
			specs := &recordedSpecs{fails: test.fails}
			runtime, p := registered(t, Options{Policy: mustPolicy(t, test.config), StoredSpecs: specs,
				Limits: limits.On(limitstest.NewKernel(nil))})
			ctr := verbsContainer(t, p.root)
			ctr.Id = limitstest.ID("a")
			adjustment, err := runtime.Create(t.Context(), pod, ctr)
			if err != nil || len(adjustment.GetRlimits()) != 1 {
				t.Fatalf("creation: %v, %v", adjustment, err)
			}
			if specs.left <= DefaultBudget || specs.left > await.Timeout {
				t.Errorf("the edit has %s, want as long as the runtime waits, not the plugin's budget", specs.left)
			}
			p.expectLine(t, append(test.says, "level=warning", "container=main", "not confirmed", test.fails.Error())...)
			p.expectGrants(t, grantUnconfirmed)
		})
	}
}

// Where no spec can be edited, the plugin says once what to do, promises no IPC_LOCK, and grants the rest.
// TestConfigure_Events has that it asks for no event in vain.
func TestConfigure_NoStoredSpecs(t *testing.T) {
	root := hcatest.V100(t)
	for runtime, says := range map[string][]string{
		"cri-o":      {"no CAP_IPC_LOCK, because CRI-O has no API", "capabilities.add: [IPC_LOCK]", crioLine},
		"podman":     {"no CAP_IPC_LOCK, because podman has no known API"},
		"containerd": nil,
	} {
		t.Run(runtime, func(t *testing.T) {
			log, logger := &output.Buffer{}, quiet()
			logger.SetOutput(log)
			p := New(Options{Log: logger, Inventory: inventoryOf(t, root), Policy: mustPolicy(t, "{}"),
				StoredSpecs: &recordedSpecs{}})
			for range 2 { // registrations
				_, err := p.Configure(t.Context(), "", runtime, "9.9.9")
				must.Succeed(t, err)
			}
			adjustment, _, err := p.CreateContainer(t.Context(), pod, verbsContainer(t, root))
			if err != nil || len(adjustment.GetRlimits()) != 1 {
				t.Errorf("creation: %v, %v", adjustment, err)
			}
			if n := strings.Count(log.String(), "but no CAP_IPC_LOCK"); n != min(len(says), 1) {
				t.Errorf("said %d times:\n%s", n, log)
			}
			for _, want := range says {
				if !strings.Contains(log.String(), want) {
					t.Errorf("the log does not say %q:\n%s", want, log)
				}
			}
			pending := p.confirmer.pending.all()
			if (len(pending) > 0) == (says != nil) || strings.Contains(log.String(), "ipc_lock=") {
				t.Errorf("pending: %v; the log says:\n%s", pending, log)
			}
		})
	}
}

func TestCRIOLine(t *testing.T) {
	var config struct {
		Crio struct {
			Runtime struct {
				Capabilities []string `toml:"default_capabilities"`
			} `toml:"runtime"`
		} `toml:"crio"`
	}
	must.Succeed(t, toml.Unmarshal([]byte(crioLine), &config))
	want := []string{"CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "SETGID", "SETUID", "SETPCAP",
		"NET_BIND_SERVICE", "KILL", "IPC_LOCK"}
	if diff := cmp.Diff(want, config.Crio.Runtime.Capabilities); diff != "" {
		t.Error(diff)
	}
}
