// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package examples_test

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

// TestPodsAreKubernetes: no field of a pod is misspelt. What each example promises of RDMA is checked where `rdma-spec
// explain` is tested.
func TestPodsAreKubernetes(t *testing.T) {
	var resources []string
	count := func(spec corev1.PodSpec) {
		for _, c := range spec.Containers {
			for name := range c.Resources.Limits {
				resources = append(resources, string(name))
			}
		}
	}
	files, err := filepath.Glob(repository.Path(t, "deploy/examples/*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasPrefix(filepath.Base(file), "config") {
			continue
		}
		var object struct {
			Kind string `json:"kind"`
			Spec struct {
				Replicas map[string]struct {
					Template json.RawMessage `json:"template"`
				} `json:"mpiReplicaSpecs"`
			} `json:"spec"`
		}
		if err := yaml.Unmarshal([]byte(repository.Read(t, file)), &object); err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		switch object.Kind {
		case "Pod":
			var pod corev1.Pod
			if err := yaml.UnmarshalStrict([]byte(repository.Read(t, file)), &pod); err != nil {
				t.Errorf("%s: %v", file, err)
			}
			count(pod.Spec)
		case "MPIJob":
			for name, replica := range object.Spec.Replicas {
				var template corev1.PodTemplateSpec
				if err := yaml.UnmarshalStrict(replica.Template, &template); err != nil {
					t.Errorf("%s: %s: %v", file, name, err)
				}
				count(template.Spec)
			}
		case "StatefulSet":
			var set appsv1.StatefulSet
			if err := yaml.UnmarshalStrict([]byte(repository.Read(t, file)), &set); err != nil {
				t.Errorf("%s: %v", file, err)
			}
			count(set.Spec.Template.Spec)
		default:
			t.Errorf("%s: nobody checks a %q", file, object.Kind)
		}
	}
	for _, want := range []string{
		"rdma/hca_shared_devices_a", "rdma/rdma_v100", "nvidia.com/hostdev", "smarter-devices/infiniband",
		"spidernet.io/shared_cx5_gpu1", "spidernet.io/shared_cx5_gpu8",
	} {
		if !slices.Contains(resources, want) {
			t.Errorf("no example requests %s", want)
		}
	}
}

// TestConfigurations: the plugin accepts them.
func TestConfigurations(t *testing.T) {
	files, err := filepath.Glob("config*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("files %v, %v", files, err)
	}
	for _, file := range files {
		if _, err := policy.Load(file); err != nil {
			t.Error(err)
		}
	}
}
