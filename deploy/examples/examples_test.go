// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package examples_test

import (
	"encoding/json"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

// example is the objects of a file.
type example struct {
	objects []object
	texts   [][]byte // each object as JSON
}

func read(t *testing.T, text string) (e example) {
	t.Helper()
	for _, document := range regexp.MustCompile(`(?m)^---$`).Split(text, -1) {
		data, err := yaml.YAMLToJSONStrict([]byte(document))
		if err != nil {
			t.Fatal(err)
		}
		var o object
		if err := json.Unmarshal(data, &o); err != nil {
			t.Fatal(err)
		}
		e.objects, e.texts = append(e.objects, o), append(e.texts, data)
	}
	return e
}

// pods returns the pods of an example, with the name of what has them.
func (e example) pods(t *testing.T) map[string]corev1.PodTemplateSpec {
	t.Helper()
	all := map[string]corev1.PodTemplateSpec{}
	add := func(name string, value any) {
		var pod corev1.PodTemplateSpec
		data, err := json.Marshal(value)
		if err == nil {
			err = json.Unmarshal(data, &pod)
		}
		if err != nil {
			t.Fatal(err)
		}
		all[name] = pod
	}
	for _, o := range e.objects {
		spec := at[map[string]any](o, "spec")
		switch {
		case at[string](o, "kind") == "Pod":
			add(o.name(), o)
		case spec["template"] != nil:
			add(o.name(), spec["template"])
		}
		for _, task := range at[[]any](spec, "tasks") {
			task, _ := task.(map[string]any)
			add(o.name()+"/"+at[string](task, "name"), task["template"])
		}
		for name, replica := range at[map[string]any](spec, "mpiReplicaSpecs") {
			replica, _ := replica.(map[string]any)
			add(o.name()+"/"+name, replica["template"])
		}
	}
	return all
}

// configured finds what a device plugin offers in its configuration, which is JSON in a text.
var configured = regexp.MustCompile(`(?:"resourcePrefix": "([^"]+)",\s*)?"resourceName": "([^"]+)"`)

// offered returns the resources that the device plugins of an example offer, if it has any.
func (e example) offered() (all []string) {
	for i, o := range e.objects {
		text := at[string](o, "data", "config.json")
		for _, plugin := range []string{"rdmaSharedDevicePlugin", "sriovDevicePlugin"} {
			text += at[string](o, "spec", plugin, "config")
		}
		for _, found := range configured.FindAllStringSubmatch(text, -1) {
			prefix := found[1]
			if prefix == "" {
				prefix = "rdma" // that of the RDMA shared device plugin
			}
			all = append(all, prefix+"/"+found[2])
		}
		if at[string](o, "kind") == "SriovNetworkNodePolicy" {
			all = append(all, "openshift.io/"+at[string](o, "spec", "resourceName"))
		}
		for _, found := range regexp.MustCompile(`devicematch: \^(\w+)\$`).FindAllStringSubmatch(string(e.texts[i]), -1) {
			all = append(all, "smarter-devices/"+found[1])
		}
	}
	return all
}

// policy is what the Network Operator's webhook asks of a NicNodePolicy beside its fields.
type policy struct {
	name     string
	selector map[string]any
	sections []string
}

// perNode are the sections that a NicClusterPolicy and NicNodePolicies must not both have.
var perNode = []string{"ofedDriver", "rdmaSharedDevicePlugin", "sriovDevicePlugin"}

// refusedPolicies returns what the Network Operator's webhook would refuse of an example's policies for groups of nodes.
func (e example) refusedPolicies() (all []string) {
	var cluster []string
	var nodes []policy
	for _, o := range e.objects {
		p := policy{o.name(), at[map[string]any](o, "spec", "nodeSelector"), nil}
		for _, section := range perNode {
			if at[any](o, "spec", section) != nil {
				p.sections = append(p.sections, section)
			}
		}
		switch at[string](o, "kind") {
		case "NicClusterPolicy":
			cluster = append(cluster, p.sections...)
		case "NicNodePolicy":
			nodes = append(nodes, p)
		}
	}
	for i, p := range nodes {
		if _, name, _ := strings.Cut(p.name, "/"); len(name) > 30 {
			all = append(all, name+" has more than 30 characters")
		}
		for _, section := range p.sections {
			if slices.Contains(cluster, section) {
				all = append(all, section+" is in the NicClusterPolicy and in "+p.name)
			}
		}
		for _, other := range nodes[:i] {
			if !disjoint(p.selector, other.selector) {
				all = append(all, "a node may match "+p.name+" and "+other.name)
			}
		}
	}
	return all
}

// disjoint reports whether no node matches both selectors, since they want different values of one label.
func disjoint(one, other map[string]any) bool {
	for key, value := range one {
		if its, ok := other[key]; ok && its != value {
			return true
		}
	}
	return false
}

// missing returns what the pods of an example refer to and no object of it is.
func (e example) missing(t *testing.T) (all []string) {
	t.Helper()
	defined := map[string]bool{}
	for _, o := range e.objects {
		name := o.name()
		if namespace := at[string](o, "spec", "networkNamespace"); namespace != "" {
			name = namespace + "/" + at[string](o, "metadata", "name")
		}
		defined[at[string](o, "kind")+" "+name] = true
	}
	need := func(name string, kinds ...string) {
		if !slices.ContainsFunc(kinds, func(kind string) bool { return defined[kind+" "+name] }) {
			all = append(all, kinds[0]+" "+name)
		}
	}
	for _, o := range e.objects {
		for _, pool := range at[[]any](o, "spec", "macvlan", "ippools", "ipv4") {
			need("default/"+pool.(string), "SpiderIPPool")
		}
		if resource := at[string](o, "spec", "macvlan", "rdmaResourceName"); resource != "" &&
			!slices.Contains(e.offered(), resource) {
			all = append(all, "resource "+resource)
		}
	}
	for name, pod := range e.pods(t) {
		namespace, _, _ := strings.Cut(name, "/")
		for _, n := range networks(t, namespace, pod.Annotations["k8s.v1.cni.cncf.io/networks"]) {
			need(n, "network", "HostDeviceNetwork", "SriovIBNetwork", "SpiderMultusConfig")
		}
		for _, v := range pod.Spec.Volumes {
			if v.ConfigMap != nil {
				need(namespace+"/"+v.ConfigMap.Name, "ConfigMap")
			}
			if v.PersistentVolumeClaim != nil {
				need(namespace+"/"+v.PersistentVolumeClaim.ClaimName, "PersistentVolumeClaim")
			}
		}
		for _, c := range pod.Spec.Containers {
			for resource := range c.Resources.Limits {
				name := string(resource)
				if offered := e.offered(); len(offered) > 0 && strings.Contains(name, "/") && name != "nvidia.com/gpu" &&
					!slices.Contains(offered, name) {
					all = append(all, "resource "+name)
				}
			}
		}
	}
	return all
}

// networks returns the networks of an annotation, with their namespaces.
func networks(t *testing.T, namespace, annotation string) (all []string) {
	t.Helper()
	if !strings.HasPrefix(annotation, "[") {
		for name := range strings.SplitSeq(annotation, ",") {
			if name != "" {
				all = append(all, namespace+"/"+name)
			}
		}
		return all
	}
	var listed []struct{ Name, Namespace string }
	if err := json.Unmarshal([]byte(annotation), &listed); err != nil {
		t.Fatal(err)
	}
	for _, n := range listed {
		all = append(all, n.Namespace+"/"+n.Name)
	}
	return all
}

// TestExamples: no field of an object is misspelt, and each object that another one refers to is in the file. What each
// example promises of RDMA is checked where `rdma-spec explain` is tested.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob(repository.Path(t, "deploy/examples/*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	resources := map[string]bool{}
	for _, file := range files {
		name := filepath.Base(file)
		if strings.HasPrefix(name, "config") {
			continue
		}
		e := read(t, repository.Read(t, file))
		if strings.HasSuffix(name, ".values.yaml") {
			for _, problem := range unknown(map[string]any(e.objects[0]), "", strings.Fields(fields[name])) {
				t.Errorf("%s: %s", name, problem)
			}
			continue
		}
		for _, problem := range e.refusedPolicies() {
			t.Errorf("%s: %s", name, problem)
		}
		for i, o := range e.objects {
			for _, problem := range o.problems(e.texts[i]) {
				t.Errorf("%s: %s %s: %s", name, o.kind(), o.name(), problem)
			}
		}
		for _, missing := range e.missing(t) {
			t.Errorf("%s: %s is missing", name, missing)
		}
		for _, pod := range e.pods(t) {
			for _, c := range pod.Spec.Containers {
				for name := range c.Resources.Limits {
					resources[string(name)] = true
				}
			}
		}
	}
	for _, want := range []string{
		"rdma/hca_shared_devices_a", "rdma/rdma_v100", "rdma/rdma_a100", "nvidia.com/hostdev",
		"smarter-devices/infiniband", "openshift.io/ib_vfs", "spidernet.io/shared_cx5_gpu1", "spidernet.io/shared_cx5_gpu8",
	} {
		if !resources[want] {
			t.Errorf("no example requests %s: %v", want, slices.Sorted(maps.Keys(resources)))
		}
		if !slices.ContainsFunc(policed(t), func(glob string) bool { ok, err := path.Match(glob, want); return ok && err == nil }) {
			t.Errorf("the admission policies do not know %s", want)
		}
	}
}

// policed returns the globs of resources that the chart's admission policies have by default.
func policed(t *testing.T) []string {
	t.Helper()
	var values struct {
		Admission struct {
			Resources []string `json:"resources"`
		} `json:"admission"`
	}
	if err := yaml.Unmarshal([]byte(repository.Read(t, repository.Path(t, "deploy/helm/nri-rdma/values.yaml"))), &values); err != nil {
		t.Fatal(err)
	}
	return values.Admission.Resources
}
