// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/rdma-spec/rdma-spec/plugin/breaker"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/test/testing/expect"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// The words of kubelets, which give them no code.
var errGetDisabled = errors.New("PodResources API Get method disabled")

func notFound(namespace, pod string) error {
	return fmt.Errorf("pod %s in namespace %s not found", pod, namespace)
}

func TestNames(t *testing.T) {
	trainer := pod("ml", "trainer", map[string][]string{
		"main":    {"rdma/rdma_v100", "nvidia.com/gpu", "nvidia.com/gpu"},
		"sidecar": nil, "claimant": {"nvidia.com/gpu", "claim/nic"},
	})
	other := pod("ml", "trainer-2", map[string][]string{"main": {"rdma/other"}})
	sameName := pod("guest", "trainer", map[string][]string{"main": {"rdma/guest"}})
	all := []*podresources.PodResources{other, sameName, trainer}
	listAll := func() ([]*podresources.PodResources, error) { return all, nil }

	kubelets := map[string]*kubelet{
		"Get":                       {get: knows(all...)},
		"List where Get is unknown": {list: listAll},
		"List where Get is off": {list: listAll, get: func(context.Context, string,
			string) (*podresources.PodResources, error) {
			return nil, errGetDisabled
		}},
	}
	for name, k := range kubelets {
		t.Run(name, func(t *testing.T) {
			c := clientOf(t, k)
			for _, tt := range []struct {
				sandbox, container string
				want               []string
				known              bool
			}{
				{"s1", "main", []string{"nvidia.com/gpu", "rdma/rdma_v100"}, true},
				{"s1", "sidecar", nil, true},
				{"s1", "claimant", []string{"nvidia.com/gpu"}, false}, // a DRA driver has allotted something as well
				{"s1", "ordinary-init", nil, false},                   // the kubelet does not list it
			} {
				got, known, err := c.Names(context.Background(), tt.sandbox, "ml", "trainer", tt.container)
				if err != nil {
					t.Fatalf("%s: %v", tt.container, err)
				}
				if known != tt.known {
					t.Errorf("%s: known is %t", tt.container, known)
				}
				expect.Equal(t, tt.container, tt.want, got)
			}
			if asked := k.gets.Load() + k.lists.Load(); asked > 2 {
				t.Errorf("asked %d times for one pod", asked)
			}
			if _, _, err := c.Names(context.Background(), "s9", "ml", "unknown", "main"); err == nil ||
				!strings.Contains(err.Error(), "the kubelet does not know pod ml/unknown") {
				t.Errorf("an unknown pod: %v", err)
			}
			if k.get != nil && k.list == nil && k.lists.Load() > 0 {
				t.Error("List was called although there is Get")
			}
			if k.list != nil && k.gets.Load() > 1 {
				t.Errorf("Get was tried %d times although there is none", k.gets.Load())
			}
		})
	}
}

// A pod holds what its containers hold together.
func TestPodHolds(t *testing.T) {
	c := clientOf(t, &kubelet{get: knows(
		pod("ml", "trainer", map[string][]string{"main": {"rdma/ib", "nvidia.com/gpu"}, "second": {"nvidia.com/gpu"}}),
		pod("ml", "claimant", map[string][]string{"main": {"claim/nic"}, "sidecar": nil}),
	)})
	for _, test := range []struct {
		pod    string
		want   []policy.Allotted
		claims bool
	}{{"trainer", []policy.Allotted{{Resource: "nvidia.com/gpu", Devices: []string{"0"}},
		{Resource: "rdma/ib", Devices: []string{"0"}}}, false}, {"claimant", nil, true}} {
		held, claims, err := c.PodHolds(t.Context(), test.pod, "ml", test.pod)
		if diff := cmp.Diff(test.want, held); diff != "" || claims != test.claims || err != nil {
			t.Errorf("%s has claims: %t, %v (-want +got):\n%s", test.pod, claims, err, diff)
		}
	}
}

// A node without the kubelet's directory has no kubelet, however often it is asked; one without the socket may get it
// yet.
func TestPodHolds_noKubelet(t *testing.T) {
	dir := scratch.Dir(t)
	for socket, none := range map[string]bool{dir + "/kubelet.sock": false, dir + "/gone/kubelet.sock": true} {
		c := New(Options{Socket: socket, Budget: 10 * time.Millisecond})
		for range 2 * breaker.Failures {
			if _, _, err := c.PodHolds(t.Context(), "s", "ml", "trainer"); err == nil || errors.Is(err, policy.ErrNoKubelet) != none {
				t.Errorf("%s: %v", socket, err)
			}
		}
	}
}

// What the kubelet said of a pod is not used for the next one of the same name, nor what it says of another pod than it
// was asked for.
func TestNames_otherPod(t *testing.T) {
	first := pod("ml", "db-0", map[string][]string{"main": {"rdma/a"}})
	second := pod("ml", "db-0", map[string][]string{"main": {"rdma/b"}})
	current := first
	k := &kubelet{get: func(context.Context, string, string) (*podresources.PodResources, error) { return current, nil }}
	c := clientOf(t, k)

	names := func(sandbox, pod string) []string {
		t.Helper()
		got, _, err := c.Names(context.Background(), sandbox, "ml", pod, "main")
		if err != nil {
			return []string{err.Error()}
		}
		return got
	}
	got := [][]string{names("s1", "db-0")}
	current = second
	got = append(got, names("s1", "db-0"), names("s2", "db-0"), names("", "db-0"))
	current = first
	got = append(got, names("", "db-0"), names("s3", "db-1"))
	want := [][]string{{"rdma/a"}, {"rdma/a"}, {"rdma/b"}, {"rdma/b"}, {"rdma/a"},
		{"the kubelet does not know pod ml/db-1"}}
	expect.Equal(t, "names", want, got)
}

// TestNames_twoPodsOfOneName: an old kubelet may list a pod that ends next to the one that takes its place.
func TestNames_twoPodsOfOneName(t *testing.T) {
	k := &kubelet{list: func() ([]*podresources.PodResources, error) {
		return []*podresources.PodResources{
			pod("ml", "db-0", map[string][]string{"main": {"rdma/a"}}),
			pod("ml", "db-0", map[string][]string{"main": nil}),
		}, nil
	}}
	c := clientOf(t, k)
	for range 2 * breaker.Failures { // the kubelet answers, so it is asked again, for other pods too
		got, _, err := c.Names(context.Background(), "s1", "ml", "db-0", "main")
		if err == nil || !strings.Contains(err.Error(), "lists two pods named ml/db-0") {
			t.Errorf("got %v, %v", got, err)
		}
	}
}

// TestNames_sharedLookUp: containers of a pod that are created at once share a look-up.
func TestNames_sharedLookUp(t *testing.T) {
	trainer := pod("ml", "trainer", map[string][]string{"main": {"rdma/a"}})
	k := &kubelet{get: knows(trainer)}
	c := clientOf(t, k)
	var group sync.WaitGroup
	for range 50 {
		group.Go(func() {
			got, _, err := c.Names(context.Background(), "s1", "ml", "trainer", "main")
			if err != nil || len(got) != 1 {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
	group.Wait()
	if n := k.gets.Load(); n != 1 {
		t.Errorf("the kubelet was asked %d times", n)
	}
}

// TestNames_unknownPod: a kubelet that does not know pods works, so it is asked again.
func TestNames_unknownPod(t *testing.T) {
	for name, k := range map[string]*kubelet{
		"in its words": {get: knows()},
		"with a code": {get: func(context.Context, string, string) (*podresources.PodResources, error) {
			return nil, status.Error(codes.NotFound, "no such pod")
		}},
		"in a list": {list: func() ([]*podresources.PodResources, error) { return nil, nil }},
	} {
		t.Run(name, func(t *testing.T) {
			c := clientOf(t, k)
			for i := range 2 * breaker.Failures {
				if _, _, err := c.Names(context.Background(), "s1", "ml", "x", "main"); err == nil || !strings.Contains(err.Error(),
					"the kubelet does not know pod ml/x") {
					t.Fatalf("time %d: %v", i, err)
				}
			}
		})
	}
}

// An answer is used for two minutes, and the client keeps 1024 of them: those that were used last.
func TestAnswersAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kubelet{get: knows(pod("ml", "trainer", map[string][]string{"main": {"rdma/a"}}))}
		c := inMemory(t, k)
		asked := func(sandbox string) bool {
			t.Helper()
			before := k.gets.Load()
			if names, _, err := c.Names(context.Background(), sandbox, "ml", "trainer", "main"); err != nil || len(names) != 1 {
				t.Fatalf("%v, %v", names, err)
			}
			return k.gets.Load() != before
		}
		if !asked("first") || asked("first") {
			t.Error("the kubelet must be asked once")
		}
		time.Sleep(keptFor - time.Second)
		if asked("first") {
			t.Error("an answer is forgotten before its time")
		}
		time.Sleep(time.Second + time.Nanosecond)
		if !asked("first") {
			t.Error("an answer is used after its time")
		}
		for i := range keptMost {
			if !asked(fmt.Sprint(i)) {
				t.Fatalf("sandbox %d has another one's answer", i)
			}
		}
		if !asked("first") {
			t.Errorf("more than %d answers are kept", keptMost)
		}
		if asked(fmt.Sprint(keptMost-1)) || asked("1") {
			t.Errorf("less than %d answers are kept", keptMost)
		}
	})
}

// A pod's author decides how many containers it has. An answer about very many takes much memory, and is not kept.
func TestNames_largeAnswerNotKept(t *testing.T) {
	for count, asked := range map[int]int64{keptContainers: 1, keptContainers + 1: 2} {
		containers := map[string][]string{}
		for i := range count {
			containers[fmt.Sprint("c", i)] = []string{"rdma/a"}
		}
		synctest.Test(t, func(t *testing.T) {
			k := &kubelet{get: knows(pod("ml", "trainer", containers))}
			c := inMemory(t, k)
			for range 2 {
				if names, known, err := c.Names(context.Background(), "sandbox", "ml", "trainer", "c0"); err != nil ||
					!known || len(names) != 1 {
					t.Fatalf("%v, %t, %v", names, known, err)
				}
			}
			if got := k.gets.Load(); got != asked {
				t.Errorf("%d containers: the kubelet was asked %d times, want %d", count, got, asked)
			}
		})
	}
}
