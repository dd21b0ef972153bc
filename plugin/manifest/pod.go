// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// Pod is a pod template.
type Pod struct {
	Document int    // of the manifest, from 1
	Object   string // what it belongs to, KIND/NAME: "Deployment/trainer"
	Path     string // where it stands in the object: "spec.template"; "" for a Pod
	// Namespace is the object's; default where it names none, and Unplaced says so.
	Namespace string
	Unplaced  bool
	// RuntimeClass is taken for the name of its handler, as it is nearly everywhere.
	RuntimeClass string
	// OwnUsers: it has a user namespace of its own (hostUsers: false).
	OwnUsers   bool
	Containers []Container // those of init first
	Problems   []string    // with paths below the object

	object object
}

// String names the pod template: "Deployment/trainer spec.template".
func (p Pod) String() string { return strings.TrimSuffix(p.Object+" "+p.Path, " ") }

// Container is a container of a pod template, and what is known of it before there is a node.
type Container struct {
	// Container is what the plugin would see, less what device plugins and DRA drivers put into it.
	policy.Container
	Init, Restartable bool
	// Held are the extended resources that it requests, Claims its DRA claims, both sorted.
	Held, Claims []string
	// AddCapabilities and DropCapabilities are as in its securityContext.
	AddCapabilities, DropCapabilities []string
}

const defaultNamespace = "default"

func (f *finder) pod(at field, in object) Pod {
	p := Pod{
		Document: f.document, Object: in.kind + "/" + in.name, Path: f.within(at, in),
		Namespace: cmp.Or(in.namespace, defaultNamespace), Unplaced: in.namespace == "", object: in,
	}
	at.problems, at.path = &p.Problems, p.Path
	spec := at.get("spec")
	p.RuntimeClass = spec.get("runtimeClassName").text()
	p.OwnUsers = spec.get("hostUsers").value == false
	annotations := at.get("metadata").get("annotations").strings()
	memory := spec.get("resources").get("limits").get("memory").quantity()
	add := func(list string, init bool) {
		for _, c := range spec.get(list).list() {
			p.Containers = append(p.Containers, containerOf(c, init, policy.Container{
				Namespace: p.Namespace, Pod: in.name, RuntimeHandler: p.RuntimeClass, Annotations: annotations, MemoryLimit: memory,
				HostNetwork: spec.get("hostNetwork").boolean(),
			}))
		}
	}
	add("initContainers", true)
	add("containers", false)
	var names []string
	for _, c := range p.Containers {
		names = append(names, c.Name)
	}
	for _, c := range spec.get("ephemeralContainers").list() {
		names = append(names, c.get("name").text())
	}
	for _, problem := range annotationProblems(annotations, names) {
		p.Problems = append(p.Problems, join(p.Path, "metadata.annotations")+": "+problem)
	}
	return p
}

// containerOf reads a container; what its pod gives it is in c.
func containerOf(at field, init bool, c policy.Container) Container {
	c.Name = at.get("name").text()
	if c.Name == "" {
		at.report("has no name: a container needs one")
	}
	limits := at.get("resources").get("limits")
	if own := limits.get("memory").quantity(); own > 0 {
		c.MemoryLimit = own // otherwise the pod's, which kubelets take then
	}
	security := at.get("securityContext")
	c.AllDevices = security.get("privileged").boolean()
	for _, v := range at.get("volumeDevices").list() {
		c.Devices = append(c.Devices, policy.Device{Path: v.get("devicePath").text(), Type: "b"}) // the number is known on a node only
	}
	out := Container{
		Container: c, Init: init, Restartable: init && at.get("restartPolicy").text() == "Always",
		Held:             extended(limits, at.get("resources").get("requests")),
		AddCapabilities:  security.get("capabilities").get("add").texts(),
		DropCapabilities: security.get("capabilities").get("drop").texts(),
	}
	for _, claim := range at.get("resources").get("claims").list() {
		out.Claims = append(out.Claims, claim.get("name").text())
	}
	slices.Sort(out.Claims)
	out.Resources = func() ([]string, bool, error) {
		return out.told(), (!out.Init || out.Restartable) && len(out.Claims) == 0, nil
	}
	return out
}

// told gives the resources that the kubelet would tell of: it leaves out ordinary init containers.
func (c Container) told() []string {
	if c.Init && !c.Restartable {
		return nil
	}
	return c.Held
}

// extended gives the names of the extended resources in limits and requests, sorted. Those are the ones with a domain that is
// not Kubernetes' own: what device plugins advertise.
func extended(amounts ...field) []string {
	var names []string
	for _, a := range amounts {
		for _, name := range a.keys() {
			domain, _, hasDomain := strings.Cut(name, "/")
			own := domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io")
			if hasDomain && !own && a.get(name).quantity() > 0 {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
