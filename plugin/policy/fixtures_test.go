// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
)

func policyOf(t testing.TB, config string) *Policy {
	t.Helper()
	p, err := FromText([]byte(config + "\n# a configuration may be comments alone\n"))
	if err != nil {
		t.Fatalf("the test's configuration is bad: %v", err)
	}
	return p
}

// Devices as a test container holds them.
func heldVerbs(n int) Device {
	return Device{Path: fmt.Sprintf("/dev/infiniband/uverbs%d", n), Type: "c", Major: hcatest.Major,
		Minor: int64(hcatest.FirstVerbs + n)}
}

func gpu(n int) Device {
	return Device{Path: fmt.Sprintf("/dev/nvidia%d", n), Type: "c", Major: 195, Minor: int64(n)}
}

func deviceAt(path, kind string, major, minor int64) Device {
	return Device{Path: path, Type: kind, Major: major, Minor: minor}
}

// subject is a container, and what the kubelet says of it.
type subject struct {
	Container
	Resources func() ([]string, bool, error)
	PodHolds  func() ([]Allotted, bool, error)
}

// decide is Decide with the kubelet's answers among the facts.
func (p *Policy) decide(c subject, facts Facts) Decision {
	facts.Resources = c.Resources
	facts.PodHolds = c.PodHolds
	return p.Decide(c.Container, facts)
}

// Containers that hold devices, that are annotated through their pod, and about whose resources the kubelet is asked.
func holding(devices ...Device) subject { return subject{Container: Container{Devices: devices}} }

func annotated(namespace, value string, devices ...Device) subject {
	return subject{Container: Container{Namespace: namespace, Annotations: podAnnotation(value), Devices: devices}}
}

func askedFor(namespace string, resources func() ([]string, bool, error), devices ...Device) subject {
	return subject{Container: Container{Namespace: namespace, Devices: devices}, Resources: resources}
}

// Devices as a grant gives them.
func verbs(n int, name string) hca.Device {
	return hca.Device{
		Kind: hca.KindVerbs, Path: fmt.Sprintf("/dev/infiniband/uverbs%d", n), HCA: name, Mode: 0o666,
		Number: hca.Number{Major: hcatest.Major, Minor: uint32(hcatest.FirstVerbs + n)},
	}
}

func umad(n int, name string) hca.Device {
	return hca.Device{
		Kind: hca.KindUMAD, Path: fmt.Sprintf("/dev/infiniband/umad%d", n), HCA: name, Port: 1, Mode: 0o600,
		Number: hca.Number{Major: hcatest.Major, Minor: uint32(hcatest.FirstUMAD + n)},
	}
}

func issm(n int, name string) hca.Device {
	return hca.Device{
		Kind: hca.KindISSM, Path: fmt.Sprintf("/dev/infiniband/issm%d", n), HCA: name, Port: 1, Mode: 0o600,
		Number: hca.Number{Major: hcatest.Major, Minor: uint32(hcatest.FirstISSM + n)},
	}
}

func rdmaCM() hca.Device {
	return hca.Device{
		Kind: hca.KindRDMACM, Path: "/dev/infiniband/rdma_cm", Mode: 0o666,
		Number: hca.Number{Major: hcatest.MajorMisc, Minor: hcatest.MinorRDMACM},
	}
}

// node is a node that hcatest names.
func node(t testing.TB, name string) Facts {
	t.Helper()
	return LiveFacts(hcatest.All[name](t))
}

// unreadable is a node that cannot be read at all.
func unreadable(testing.TB) Facts {
	return Facts{
		Verbs: func(hca.Number) (hca.Device, bool, error) {
			return hca.Device{}, false, errors.New("list verbs devices: input/output error")
		},
		HCAs: ReadNow(func() (*hca.Inventory, error) { return nil, errors.New("cannot list HCAs: input/output error") }),
	}
}

// changed is A100 with another inventory.
func changed(change func(*hca.Inventory)) func(testing.TB) Facts {
	return func(t testing.TB) Facts {
		inventory, err := hca.Scan(hcatest.A100(t))
		must.Succeed(t, err)
		change(inventory)
		return fixed(inventory)
	}
}

// fixed is a node with an inventory, held in memory.
func fixed(inventory *hca.Inventory) Facts {
	return Facts{
		Verbs: func(n hca.Number) (hca.Device, bool, error) {
			d, ok := inventory.Lookup(n)
			return d, ok && d.Kind == hca.KindVerbs, nil
		},
		HCAs:  ReadNow(func() (*hca.Inventory, error) { return inventory, nil }),
		Known: func() *hca.Inventory { return inventory },
	}
}

// startable is A100 under a runtime that can start no container with more memlock.
func startable(most spec.Limit) func(testing.TB) Facts {
	return func(t testing.TB) Facts {
		facts := changed(func(*hca.Inventory) {})(t)
		facts.Startable = func() spec.Limit { return most }
		return facts
	}
}

// Kubelets.
func kubeletHolds(names ...string) func() ([]string, bool, error) {
	return func() ([]string, bool, error) { return names, true, nil }
}

// unlisted holds resources, and may hold others: it is an ordinary init container, or has a DRA claim.
func unlisted(names ...string) func() ([]string, bool, error) {
	return func() ([]string, bool, error) { return names, false, nil }
}

// podHolds is a pod that holds resources, and no claim.
func podHolds(held ...Allotted) func() ([]Allotted, bool, error) {
	return func() ([]Allotted, bool, error) { return held, false, nil }
}

// claimed is a pod that holds a claim beside a resource that is not RDMA.
func claimed() ([]Allotted, bool, error) { return []Allotted{allotted("nvidia.com/gpu")}, true, nil }

// allotted is a resource whose device plugin identifies what it allots so.
func allotted(name string, devices ...string) Allotted {
	return Allotted{Resource: name, Devices: devices}
}

// silentOfPods is a kubelet that does not answer.
func silentOfPods() ([]Allotted, bool, error) {
	return nil, false, errors.New("context deadline exceeded")
}

func silent() ([]string, bool, error) {
	return nil, false, errors.New("context deadline exceeded")
}

// Annotations of a pod.
func podAnnotation(value string) map[string]string {
	return map[string]string{AnnotationKey + "/pod": value}
}

// maxMessage bounds what a pod's author can make the plugin say of one container at once, in bytes.
const maxMessage = 2048

// checkOneLine demands that a message is fit for a log: one bounded line of printable ASCII.
func checkOneLine(t testing.TB, message string) {
	t.Helper()
	if len(message) > maxMessage {
		t.Errorf("the message is %d bytes long: %.200q...", len(message), message)
	}
	if strings.ContainsFunc(message, func(r rune) bool { return r < ' ' || r > '~' }) {
		t.Errorf("the message is not one line of ASCII: %.400q", message)
	}
}

// restrictive is the policy that attacks are tried on: it gives a little to some, and more to few.
const restrictive = `
memlock: 1Gi
optIn: {resources: [rdma/*], namespaces: [opt-*]}
inject: {namespaces: [ml-*], names: [mlx5_0, mlx5_1]}
rules:
- {name: fabric, match: {namespaces: [fabric]}, inject: {management: true, always: true}}
- {name: big, match: {namespaces: [ml-big], resources: [rdma/big]}, memlock: 4Gi, ipcLock: always}
`
