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

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// byResource has one rule that opts in by a resource, in the namespaces ml-*.
const byResource = "rules: [{name: training, match: {namespaces: [ml-*], resources: [rdma/*]}, memlock: 16Gi}]"

// fakeKubelet is a kubelet that records what it is asked.
type fakeKubelet struct {
	mu    sync.Mutex
	names []string
	err   error

	unknown bool // the names may not be all
	asked   [][]string
}

func (k *fakeKubelet) Names(_ context.Context, sandbox, namespace, pod, container string) ([]string, bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked = append(k.asked, []string{sandbox, namespace, pod, container})
	return k.names, !k.unknown, k.err
}

func (k *fakeKubelet) PodHolds(ctx context.Context, sandbox, namespace, pod string) ([]string, bool, error) {
	names, known, err := k.Names(ctx, sandbox, namespace, pod, "")
	return names, !known, err
}

func TestResourcesAreAskedForOnlyWhereARuleNeedsThem(t *testing.T) {
	for _, test := range []struct {
		name, namespace string
		kubelet         *fakeKubelet
		asked           bool
		memlock         uint64
	}{
		{"holds the resource", "ml-a", &fakeKubelet{names: []string{"nvidia.com/gpu", "rdma/rdma_v100"}}, true, 16 << 30},
		{"holds another", "ml-a", &fakeKubelet{names: []string{"nvidia.com/gpu"}}, true, 0},
		{"is not told", "ml-a", &fakeKubelet{err: errors.New("the kubelet did not answer in time")}, true, 0},
		{"in another namespace", "web", &fakeKubelet{names: []string{"rdma/rdma_v100"}}, false, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			kubelet := test.kubelet
			runtime, p := registered(t, Options{Policy: mustPolicy(t, byResource), Resources: kubelet})
			got, err := runtime.Create(t.Context(), in(test.namespace, ""), &api.Container{Id: "container", Name: "main"})
			if err != nil {
				t.Fatal(err)
			}
			var memlock uint64
			for _, r := range got.GetRlimits() {
				memlock = r.GetSoft()
			}
			if memlock != test.memlock {
				t.Errorf("memlock is %d, want %d", memlock, test.memlock)
			}
			if said := strings.Contains(p.log.String(), "the kubelet did not answer in time"); said != (kubelet.err != nil) {
				t.Errorf("the log says:\n%s", p.log)
			}
			var want [][]string
			if test.asked {
				want = [][]string{{"sandbox", test.namespace, "train-0", "main"}}
			}
			if diff := cmp.Diff(want, kubelet.asked); diff != "" {
				t.Errorf("asked (-want +got):\n%s", diff)
			}
		})
	}
}

// An annotation for a whole pod is for those of its containers that hold RDMA: the others start, where the kubelet says
// that some do.
func TestPodWideAnnotation(t *testing.T) {
	for _, test := range []struct {
		name, key string
		kubelet   *fakeKubelet
		says      string // "": it is left alone
	}{
		{"the pod holds RDMA", "/pod", &fakeKubelet{names: []string{"nvidia.com/gpu", "rdma/ib"}}, ""},
		{"the pod has a claim", "", &fakeKubelet{unknown: true}, ""},
		{"the pod holds no RDMA", "/pod", &fakeKubelet{names: []string{"nvidia.com/gpu"}}, "may not opt in by annotation"},
		{"the kubelet is silent", "/pod", &fakeKubelet{err: errors.New("no answer in time")}, "the creation is tried again"},
		{"there is no kubelet", "/pod", &fakeKubelet{err: policy.ErrNoKubelet}, "may not opt in by annotation"},
		{"for this container", "/container.istio-init", &fakeKubelet{names: []string{"rdma/ib"}},
			"may not opt in by annotation"},
	} {
		t.Run(test.name, func(t *testing.T) {
			runtime, p := registered(t, Options{Policy: mustPolicy(t, "{}"), Resources: test.kubelet})
			in := &api.PodSandbox{Id: "sandbox", Name: "train-0", Namespace: "ml",
				Annotations: map[string]string{policy.AnnotationKey + test.key: "true"}}
			_, err := runtime.Create(t.Context(), in, &api.Container{Id: "container", Name: "istio-init"})
			if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("creation: %v, want %q", err, test.says)
			}
			if said := strings.Contains(p.log.String(), "left alone: its pod's annotation"); said != (test.says == "") {
				t.Errorf("the log says:\n%s", p.log)
			}
		})
	}
}
