// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/plugin/podresources"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
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
		fails           string
	}{
		{"holds the resource", "ml-a", &fakeKubelet{names: []string{"nvidia.com/gpu", "rdma/rdma_v100"}}, true, 16 << 30, ""},
		{"holds another", "ml-a", &fakeKubelet{names: []string{"nvidia.com/gpu"}}, true, 0, ""},
		{"is not told", "ml-a", &fakeKubelet{err: errors.New("the kubelet did not answer in time")}, true, 0, ""},
		{"in another namespace", "web", &fakeKubelet{names: []string{"rdma/rdma_v100"}}, false, 0, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			kubelet := test.kubelet
			runtime, _ := registered(t, Options{Policy: mustPolicy(t, byResource), Resources: kubelet})
			pod := &api.PodSandbox{Id: "sandbox", Name: "train-0", Namespace: test.namespace}
			got, err := runtime.Create(t.Context(), pod, &api.Container{Id: "container", Name: "main"})
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

// TestAKubeletThatHangsHoldsUpNobodyElse: whoever could be an RDMA container by resource waits for the budget at most,
// and nobody else does.
func TestAKubeletThatHangsHoldsUpNobodyElse(t *testing.T) {
	socket := filepath.Join(scratch.Folder(t), "s")
	listener, err := net.Listen("unix", socket) // accepts, as the kernel does, and never answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	runtime, p := registered(t, Options{Policy: mustPolicy(t, byResource),
		Resources: podresources.New(podresources.Options{Socket: socket})})
	create := func(namespace, sandbox string) time.Duration {
		t.Helper()
		start := time.Now()
		pod := &api.PodSandbox{Id: sandbox, Name: "train-0", Namespace: namespace}
		if _, err := runtime.Create(t.Context(), pod, &api.Container{Id: "container", Name: "main"}); err != nil {
			t.Fatal(err)
		}
		return time.Since(start)
	}
	// The least of three, since a busy machine holds up everybody now and then.
	const budget = 300 * time.Millisecond
	could, other := time.Minute, time.Minute
	for _, sandbox := range []string{"s1", "s2", "s3"} {
		other = min(other, create("web", sandbox))
		could = min(could, create("ml-a", sandbox))
	}
	t.Logf("a container that a rule could be about took %s, another %s", could, other)
	if could < budget || could > 2*budget {
		t.Errorf("a container that a rule could be about took %s; the budget is %s", could, budget)
	}
	if other > budget/3 {
		t.Errorf("a container that no rule could be about took %s", other)
	}
	if took := min(create("ml-a", "s4"), create("ml-a", "s5"), create("ml-a", "s6")); took > budget/3 {
		t.Errorf("after three failures it took %s", took)
	}
	if !strings.Contains(p.log.String(), "the kubelet did not answer in time") {
		t.Errorf("the log does not say why:\n%s", p.log)
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
