// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"maps"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/rdma-spec/rdma-spec/test/node/cluster"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// clusterPatience is how long a test waits until the API server applies a new policy.
const clusterPatience = 3 * time.Minute

// Annotations as the pod's author writes them, as the policy adds them, and as the kubelet passes them on.
const (
	asks     = "rdma.noderesource.dev"
	requires = "required-plugins.noderesource.dev"
	onlyRDMA = `["rdma"]`
	mirror   = "kubernetes.io/config.mirror"
)

// TestClusterAdmission tests the admission policy with a real API server. It needs the node's Kubernetes parts.
func TestClusterAdmission(t *testing.T) {
	c := startCluster(t)
	policy := admissionFile(t, "mutating-admission-policy.yaml")
	apply(t, c, policy)
	awaitAdmission(t, c, "rdma/a", true)
	for _, test := range admissions {
		t.Run(test.name, func(t *testing.T) {
			got, err := c.Try(within(t, patience), podOf(test.annotations, test.containers...))
			if err != nil {
				t.Fatal(err)
			}
			want := maps.Clone(test.annotations)
			if want == nil && test.adds != nil {
				want = annotated{}
			}
			maps.Copy(want, test.adds)
			if diff := cmp.Diff(want, annotated(got.Annotations)); diff != "" {
				t.Errorf("annotations (-want +got):\n%s", diff)
			}
			again, err := c.Try(within(t, patience), podOf(got.Annotations, test.containers...))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(got.Annotations, again.Annotations); diff != "" {
				t.Errorf("the policy does not leave alone what it has written itself (-first +second):\n%s", diff)
			}
		})
	}
	t.Run("the list is edited", func(t *testing.T) { testListEdited(t, c, policy) })
	t.Run("the list is wrong", func(t *testing.T) { testListWrong(t, c, policy) })
	t.Run("another policy opts in", func(t *testing.T) { testReinvoked(t, c, policy) })
	t.Run("the policy is removed", func(t *testing.T) { testPolicyRemoved(t, c, policy) })
	t.Run("a quota", func(t *testing.T) { testQuota(t, c) })
	t.Run("RDMA is forbidden", func(t *testing.T) { testForbidden(t, c) })
	t.Run("an operator's device plugin", func(t *testing.T) { testOperatorsDevicePlugin(t, c) })
}

// testListEdited: resources that an administrator adds to the list count, and those that are removed no longer count.
// All kinds of globs work.
func testListEdited(t *testing.T, c *cluster.Cluster, policy string) {
	apply(t, c, edited(t, policy, `["c.example/shared_*", "a.example/h?_[a-c]", "b.*"]`))
	awaitAdmission(t, c, "c.example/shared_cx5", true)
	for resource, want := range map[string]bool{
		"rdma/a": false, "c.example/own_cx5": false,
		"a.example/h1_b": true, "a.example/h1_d": false, "a.example/h_b": false,
		"axexample/h1_b": false, "b.example/x": false,
	} {
		got, err := insists(t, c, resource)
		if err != nil || got != want {
			t.Errorf("a pod with %s insists: %v, %v; want %v", resource, got, err, want)
		}
	}
	apply(t, c, edited(t, policy, `[]`))
	awaitAdmission(t, c, "c.example/shared_cx5", false)
	got, err := c.Try(within(t, patience), podOf(annotated{asks: "true"}))
	if err != nil || got.Annotations[requires] != onlyRDMA {
		t.Errorf("with an empty list an annotated pod has annotations %v, %v", got.Annotations, err)
	}
}

// testListWrong: the server does not accept a value that is not a list. If a glob is invalid, pods that might be RDMA
// pods are refused, and all others are created.
func testListWrong(t *testing.T, c *cluster.Cluster, policy string) {
	for _, list := range []string{`[rdma/*]`, `["rdma/*", 5]`, `["rdma/*"`, `"rdma/*"`} {
		if err := c.Apply(within(t, patience), edited(t, policy, list)); err == nil {
			t.Errorf("the list %s was taken", list)
		}
	}
	apply(t, c, edited(t, policy, `["rdma/["]`))
	var refused error
	awaitThat(t, c, clusterPatience, "refuses a pod", func() bool {
		_, refused = insists(t, c, "rdma/a")
		return refused != nil
	})
	if !strings.Contains(refused.Error(), "nri-rdma-required") {
		t.Errorf("the refusal does not name the policy: %v", refused)
	}
	if _, err := c.Try(within(t, patience), podOf(nil, ctr{limits: "cpu"})); err != nil {
		t.Errorf("a plain pod: %v", err)
	}
}

// testReinvoked: changes that another policy makes to a pod later count, too.
func testReinvoked(t *testing.T, c *cluster.Cluster, policy string) {
	apply(t, c, policy)
	apply(t, c, laterPolicy)
	var got *corev1.Pod
	awaitThat(t, c, clusterPatience, "goes by another policy", func() bool {
		var err error
		got, err = c.Try(within(t, patience), podOf(nil))
		return err == nil && got.Annotations[asks] != ""
	})
	if diff := cmp.Diff(map[string]string{asks: "true", requires: onlyRDMA}, got.Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	if err := c.Delete(within(t, patience), laterPolicy); err != nil {
		t.Fatal(err)
	}
}

// laterPolicy opts pods in. Because of its name, the API server applies it last.
const laterPolicy = `apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: zz-opts-in}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  reinvocationPolicy: Never
  mutations:
    - patchType: ApplyConfiguration
      applyConfiguration: {expression: 'Object{metadata: Object.metadata{annotations: {"rdma.noderesource.dev": "true"}}}'}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: zz-opts-in}
spec: {policyName: zz-opts-in}
`

func testPolicyRemoved(t *testing.T, c *cluster.Cluster, policy string) {
	apply(t, c, policy)
	awaitAdmission(t, c, "rdma/a", true)
	if err := c.Delete(within(t, patience), policy); err != nil {
		t.Fatal(err)
	}
	awaitAdmission(t, c, "rdma/a", false)
}

// startCluster runs a cluster that ends with the test.
func startCluster(t *testing.T) *cluster.Cluster {
	t.Helper()
	c, err := cluster.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	return c
}

// startWholeCluster runs a cluster with a scheduler and the controllers of workloads.
func startWholeCluster(t *testing.T) *cluster.Cluster {
	t.Helper()
	c := startCluster(t)
	if err := c.StartControllers(); err != nil {
		t.Fatal(err)
	}
	return c
}

// admissionFile returns the content of a file in deploy/admission, as administrators install it.
func admissionFile(t *testing.T, name string) string {
	t.Helper()
	return scratch.Read(t, filepath.Join(*bin, "../deploy/admission", name))
}

// edited returns a policy whose list of resources is replaced.
func edited(t *testing.T, policy, list string) string {
	t.Helper()
	const shipped = `["rdma/*", "nvidia.com/hostdev", "openshift.io/*", "spidernet.io/*", "smarter-devices/infiniband", "vpc.amazonaws.com/efa", "aliyun/erdma"]`
	if strings.Count(policy, shipped) != 1 {
		t.Fatalf("the policy does not have the list %s once", shipped)
	}
	return strings.Replace(policy, shipped, list, 1)
}

// kubectl runs kubectl, which must succeed, and returns its output.
func kubectl(t *testing.T, c *cluster.Cluster, args ...string) string {
	t.Helper()
	out, err := c.Kubectl(within(t, kubeletPatience), args...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// apply sends a policy to the API server. To wait until the policy is in effect, call awaitAdmission, or wait for the
// expected result.
func apply(t *testing.T, c *cluster.Cluster, policy string) {
	t.Helper()
	if err := c.Apply(within(t, patience), policy); err != nil {
		t.Fatal(err)
	}
}

// awaitAdmission waits until the policy makes pods that request a resource require the plugin, or no longer does if
// want is false.
func awaitAdmission(t *testing.T, c *cluster.Cluster, resource string, want bool) {
	t.Helper()
	awaitThat(t, c, clusterPatience, "goes by the policy", func() bool {
		got, err := insists(t, c, resource)
		return err == nil && got == want
	})
}

func insists(t *testing.T, c *cluster.Cluster, resource string) (bool, error) {
	t.Helper()
	pod, err := c.Try(within(t, patience), podOf(nil, ctr{limits: resource}))
	return pod.Annotations[requires] != "", err
}
