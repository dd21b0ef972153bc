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

	"github.com/rdma-spec/rdma-spec/plugin/policy"

	"github.com/rdma-spec/rdma-spec/test/testing/expect"
)

// byResource has one rule that opts in by a resource, in the namespaces ml-*.
const byResource = "rules: [{name: training, match: {namespaces: [ml-*], resources: [rdma/*]}, memlock: 16Gi}]"

// fakeKubelet is a kubelet that records what it is asked.
type fakeKubelet struct {
	mu    sync.Mutex
	names []string
	err   error

	devices []string // the IDs of what a pod holds
	unknown bool     // the names may not be all
	asked   [][]string
}

func (k *fakeKubelet) Names(_ context.Context, sandbox, namespace, pod, container string) ([]string, bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked = append(k.asked, []string{sandbox, namespace, pod, container})
	return k.names, !k.unknown, k.err
}

func (k *fakeKubelet) PodHolds(ctx context.Context, sandbox, namespace, pod string) (held []policy.Allotted, claims bool,
	err error) {
	names, known, err := k.Names(ctx, sandbox, namespace, pod, "")
	for _, name := range names {
		held = append(held, policy.Allotted{Resource: name, Devices: k.devices})
	}
	return held, !known, err
}

// What the kubelet says of a container decides, and where an annotation is for a whole pod, what it says of that.
// Package policy has who else is asked about, and what else it may say.
func TestCreateContainer_asksKubelet(t *testing.T) {
	silent := &fakeKubelet{err: errors.New("the kubelet did not respond in time")}
	for name, test := range map[string]struct {
		pod      *api.PodSandbox
		kubelet  *fakeKubelet
		about    string // the container that it is asked about; "" is its pod
		memlock  uint64
		says     string // in the log
		refusing string // the creation
	}{
		"the container holds RDMA": {pod: podIn("ml-a", ""), kubelet: &fakeKubelet{names: []string{"nvidia.com/gpu", "rdma/ib"}},
			about: "main", memlock: 16 << 30, says: "rule=training"},
		"nobody knows": {pod: podIn("ml-a", ""), kubelet: silent, about: "main", says: "the kubelet did not respond in " +
			"time"},
		"the pod holds RDMA": {pod: podIn("web", "true"), kubelet: &fakeKubelet{names: []string{"rdma/ib"}},
			says: "left alone: the pod has been allocated "},
		"the pod holds an HCA": {pod: podIn("web", "true"),
			kubelet: &fakeKubelet{names: []string{"openshift.io/mlxnics"}, devices: []string{"0000:5e:00.0"}},
			says:    "left alone: the pod has been allocated "},
		"nobody knows of the pod": {pod: podIn("web", "true"), kubelet: silent, says: "refused",
			refusing: "the kubelet's retries also fail"},
	} {
		t.Run(name, func(t *testing.T) {
			test.kubelet.asked = nil
			runtime, p := registered(t, Options{Policy: mustPolicy(t, byResource), Resources: test.kubelet})
			got, err := runtime.Create(t.Context(), test.pod, &api.Container{Id: "container", Name: "main"})
			if (err != nil) != (test.refusing != "") || err != nil && !strings.Contains(err.Error(), test.refusing) {
				t.Fatalf("creation: %v, want %q", err, test.refusing)
			}
			var memlock uint64
			for _, r := range got.GetRlimits() {
				memlock = r.GetSoft()
			}
			if memlock != test.memlock || !strings.Contains(p.log.String(), test.says) {
				t.Errorf("memlock is %d, want %d; the log says:\n%s", memlock, test.memlock, p.log)
			}
			want := [][]string{{"sandbox", test.pod.GetNamespace(), "train-0", test.about}}
			expect.Equal(t, "asked", want, test.kubelet.asked)
		})
	}
}
