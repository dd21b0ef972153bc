// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/plugin/nritest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
)

// recordedSpecs is a StoredSpecs that records what it is asked for.
type recordedSpecs struct {
	fails error

	mu       sync.Mutex
	asked    []string // container and grant
	deadline bool     // the last call had one
}

func (r *recordedSpecs) Confirm(ctx context.Context, container string, grant spec.Grant) (storedspec.Found, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, container+" "+grant.String())
	_, r.deadline = ctx.Deadline()
	return storedspec.Found{Memlock: spec.Rlimit{Soft: grant.Memlock, Hard: grant.Memlock},
		IPCLock: grant.IPCLock != spec.IPCLockNo}, r.fails
}

func TestOnlyGrantedContainersAreEdited(t *testing.T) {
	annotated := func(value string) *api.PodSandbox {
		return &api.PodSandbox{Name: "train-0", Namespace: "ml", Annotations: map[string]string{policy.AnnotationKey: value}}
	}
	tests := []struct {
		name    string
		policy  string
		pod     *api.PodSandbox
		plain   bool // the container holds no device
		want    []string
		refused bool
	}{
		{name: "RDMA", policy: "{}", pod: pod, want: []string{"container memlock=unlimited ipc_lock=unless-dropped"}},
		{name: "in any case", policy: "ipcLock: always", pod: pod, want: []string{"container memlock=unlimited ipc_lock=true"}},
		{name: "always beside a limit", policy: "{memlock: 1Gi, ipcLock: always}", pod: pod,
			want: []string{"container memlock=1Gi ipc_lock=true"}},
		{name: "no RDMA", policy: "{}", pod: pod, plain: true},
		{name: "opted out", policy: "{}", pod: annotated("false")},
		{name: "its author wants none", policy: "{}", pod: annotated("{ipcLock: false}")},
		{name: "refused", policy: "{}", pod: annotated("true"), plain: true, refused: true},
		{name: "the policy gives none", policy: "ipcLock: false", pod: pod},
		{name: "a limit that holds", policy: "memlock: 1Gi", pod: pod},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			specs := &recordedSpecs{}
			runtime, p := registered(t, Options{Policy: mustPolicy(t, test.policy), StoredSpecs: specs})
			ctr := verbsContainer(t, p.root)
			if test.plain {
				ctr.Linux = nil
			}
			if _, err := runtime.Create(t.Context(), test.pod, ctr); (err != nil) != test.refused {
				t.Fatalf("creation: %v", err)
			}
			if diff := cmp.Diff(test.want, specs.asked); diff != "" {
				t.Errorf("edits (-want +got):\n%s", diff)
			}
			if left := p.owed.promises.Keys(); len(left) != 0 {
				t.Errorf("promises are left: %v", left)
			}
			if len(test.want) > 0 && !specs.deadline {
				t.Error("the edit does not know when the runtime loses patience")
			}
		})
	}
}

// The container has its memlock all the same, so a failed edit costs it nothing but the capability. The warning says
// whether it is made yet.
func TestFailedEditIsAWarning(t *testing.T) {
	for config, want := range map[string]string{"{}": "the plugin tries again",
		"repair: {mode: off}": "recreate the pod"} {
		t.Run(config, func(t *testing.T) {
			specs := &recordedSpecs{fails: errors.New("containerd did not answer within 300ms")}
			runtime, p := registered(t, Options{Policy: mustPolicy(t, config), StoredSpecs: specs,
				Limits: limits.On(limitstest.NewKernel(nil))})
			adjustment, err := runtime.Create(t.Context(), pod, verbsContainer(t, p.root))
			if err != nil || len(adjustment.GetRlimits()) != 1 {
				t.Fatalf("creation: %v, %v", adjustment, err)
			}
			var warnings []string
			for line := range strings.Lines(p.log.String()) {
				if strings.Contains(line, "level=warning") || strings.Contains(line, "level=error") {
					warnings = append(warnings, line)
				}
			}
			if len(warnings) != 1 {
				t.Fatalf("%d warnings, want one:\n%s", len(warnings), p.log)
			}
			for _, want := range []string{"level=warning", "pod=ml/train-0", "container=main",
				`error="containerd did not answer within 300ms"`, "not confirmed", want, "plugin_request_timeout"} {
				if !strings.Contains(warnings[0], want) {
					t.Errorf("the warning does not say %q: %s", want, warnings[0])
				}
			}
		})
	}
}

// Where no spec can be edited, the plugin says once what to do, asks for no event that is of no use, and grants the
// rest.
func TestRuntimesWithoutStoredSpecs(t *testing.T) {
	tests := []struct {
		name, runtime, version string
		policy                 string
		want                   []string // nil: nothing is said
		edited                 bool
	}{
		{name: "CRI-O", runtime: "cri-o", version: "1.34.2", policy: "{}", want: []string{
			"no CAP_IPC_LOCK: CRI-O has no API", "capabilities.add: [IPC_LOCK]", crioLine}},
		{name: "another runtime", runtime: "podman", version: "6.0.0", policy: "{}",
			want: []string{"no CAP_IPC_LOCK: podman has no known API"}},
		{name: "containerd", runtime: "containerd", version: "v2.4.2", policy: "{}", edited: true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			specs := &recordedSpecs{}
			runtime := nritest.New(t, test.runtime, test.version)
			runtime.Start(t)
			p := run(t, Options{Socket: runtime.Socket, Policy: mustPolicy(t, test.policy), StoredSpecs: specs})
			await.That(t, await.Patience, "registered", func() bool { return runtime.Synchronised() == 1 })
			runtime.Stop()
			runtime.Start(t)
			await.That(t, await.Patience, "registered again", func() bool { return runtime.Synchronised() == 2 })

			adjustment, err := runtime.Create(t.Context(), pod, verbsContainer(t, p.root))
			if err != nil || len(adjustment.GetRlimits()) != 1 {
				t.Errorf("creation: %v, %v", adjustment, err)
			}
			if left := p.owed.promises.Keys(); (len(specs.asked) > 0) != test.edited || len(left) != 0 {
				t.Errorf("edits: %q, left: %v", specs.asked, left)
			}
			log := p.log.String()
			if n := strings.Count(log, "but no CAP_IPC_LOCK"); n != min(len(test.want), 1) {
				t.Errorf("said %d times:\n%s", n, log)
			}
			for _, want := range test.want {
				if !strings.Contains(log, want) {
					t.Errorf("the log does not say %q:\n%s", want, log)
				}
			}
			if promised := strings.Contains(log, "ipc_lock="); promised != test.edited {
				t.Errorf("the log promises an IPC_LOCK: %v\n%s", promised, log)
			}
		})
	}
}

func TestLineForCRIO(t *testing.T) {
	var config struct {
		Crio struct {
			Runtime struct {
				Capabilities []string `toml:"default_capabilities"`
			} `toml:"runtime"`
		} `toml:"crio"`
	}
	if err := toml.Unmarshal([]byte(crioLine), &config); err != nil {
		t.Fatal(err)
	}
	want := []string{"CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "SETGID", "SETUID", "SETPCAP",
		"NET_BIND_SERVICE", "KILL", "IPC_LOCK"}
	if diff := cmp.Diff(want, config.Crio.Runtime.Capabilities); diff != "" {
		t.Error(diff)
	}
}
