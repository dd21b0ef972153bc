// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// Whatever a pod's author writes, it is either understood or answered with one bounded line of ASCII.
func FuzzAnnotation(f *testing.F) {
	for _, value := range unreadableAnnotations {
		f.Add(value)
	}
	for value := range readableAnnotations() {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		asked, err := parseAnnotation(value)
		if err != nil {
			if asked.optOut || asked.memlock != nil || asked.ipcLock != nil || asked.devices.given() || asked.devices.none {
				t.Errorf("%q is refused (%v) and understood as %+v", value, err, asked)
			}
			checkOneLine(t, err.Error())
			return
		}
		if len(value) > maxAnnotation || strings.ContainsFunc(value, notPlain) {
			t.Errorf("%q is taken", value)
		}
		for _, name := range asked.devices.names {
			if strings.ContainsAny(name, "/\x00 \n") || name == "." || name == ".." || len(name) > 63 {
				t.Errorf("%q names %q", value, name)
			}
		}
	})
}

// Whatever an administrator writes, it is either refused or a policy that can be shown and read again.
func FuzzConfig(f *testing.F) {
	for _, config := range append(badConfigs, rules, restrictive, listed, "{}", "a: &a [*a]", "a: &a {<<: *a}") {
		f.Add(config)
	}
	node := fixedNode(f)
	f.Fuzz(func(t *testing.T, config string) {
		first, err := FromText([]byte(config))
		if err != nil {
			return
		}
		text, err := yaml.Marshal(first.Config())
		if err != nil {
			t.Fatal(err)
		}
		second, err := FromText(text)
		if err != nil {
			t.Fatalf("%v in what config show would write:\n%s", err, text)
		}
		if diff := cmp.Diff(first.Config(), second.Config()); diff != "" {
			t.Errorf("config show would write another configuration (-want +got):\n%s", diff)
		}
		first.Decide(Container{Namespace: "ml-a", Annotations: podAnnotation("true"), Devices: []Device{heldVerbs(0)}, Resources: holds("rdma/ib")}, node)
	})
}

// fixedNode is A100, read once: mlx5_0 down, mlx5_1 up, mlx5_bond_0 Ethernet.
func fixedNode(t testing.TB) Node {
	live := LiveNode(hcatest.A100(t))
	node, errScan := live.HCAs()
	return Node{
		Verbs: func(n hca.Number) (hca.Device, bool, error) {
			d, ok := node.Lookup(n)
			return d, ok && d.Kind == hca.KindVerbs, errScan
		},
		HCAs: func() (*hca.Node, error) { return node, errScan },
	}
}

// Whatever a pod's author chooses, the restrictive policy holds. The conditions are written down anew, not taken from the code.
func FuzzDecide(f *testing.F) {
	f.Add("ml-a", "true", "big", "", "c", "/dev/infiniband/uverbs0", int64(231), int64(192), int64(1<<30), "rdma/ib", false, false)
	f.Add("ml-big", "{memlock: 4Gi, ipcLock: true, devices: [mlx5_0]}", "big", "runc", "b", "/dev/infiniband/uverbs1", int64(231), int64(193), int64(0), "", true, false)
	f.Add("guest-1", "false", "", "kata", "c", "/dev/x", int64(231), int64(193), int64(-1), "rdma/ib", false, true)
	f.Add("fabric", "{devices: all}", "small", "nvidia", "u", "/dev//infiniband/umad0", int64(10), int64(58), int64(0), "rdma/a", false, false)
	f.Add("web", "{memlock: unlimited}", "big", "", "p", "", int64(-1), int64(1<<32+192), int64(1<<62), "a/b", true, true)
	p, node := policyOf(f, restrictive), fixedNode(f)
	f.Fuzz(func(t *testing.T, namespace, annotation, label, handler, devType, devPath string, major, minor, memory int64, resource string, privileged, kubeletFails bool) {
		c := Container{
			Namespace: namespace, Name: "c", RuntimeHandler: handler, Labels: map[string]string{"size": label}, Annotations: podAnnotation(annotation),
			Devices: []Device{{Path: devPath, Type: devType, Major: major, Minor: minor}}, AllDevices: privileged, MemoryLimit: memory, Resources: holds(resource),
		}
		if kubeletFails {
			c.Resources = silent
		}
		d := p.Decide(c, node)
		for _, line := range append(d.Warnings, d.Reason) {
			checkOneLine(t, line)
		}
		if d.Refusal != nil {
			checkOneLine(t, d.Refusal.Message)
			if d.Grant != nil {
				t.Error("both a grant and a refusal")
			}
		}
		if d.Grant == nil {
			return
		}
		listed, fabric := strings.HasPrefix(namespace, "ml-") && !strings.Contains(namespace, "/"), namespace == "fabric"
		big := namespace == "ml-big" && label == "big"
		holdsVerbs := !privileged && (devType == "c" || devType == "u") && major == 231 && minor >= 192 && minor <= 194
		holdsResource := !kubeletFails && strings.HasPrefix(resource, "rdma/") && strings.Count(resource, "/") == 1
		switch {
		case strings.HasPrefix(namespace, "guest-") && !strings.Contains(namespace, "/"):
			t.Error("a grant where a rule denies")
		case strings.HasPrefix(handler, "kata") && !strings.Contains(handler, "/"):
			t.Error("a grant to a skipped handler")
		case !listed && !holdsVerbs && !holdsResource:
			t.Error("a grant without a signal")
		case strings.TrimSpace(annotation) == "false":
			t.Error("a grant in spite of the opt-out")
		case big && d.Grant.Memlock > 4<<30, !big && d.Grant.Memlock > 1<<30, d.Grant.Memlock == 0:
			t.Errorf("memlock is %s", d.Grant.Memlock)
		case !big && d.Grant.IPCLock != spec.IPCLockNo:
			t.Errorf("CAP_IPC_LOCK next to a finite memlock")
		case !listed && !fabric && len(d.Grant.Devices) > 0:
			t.Errorf("devices in a namespace that may not have any: %v", d.Grant.Devices)
		}
		inventory, _ := node.HCAs()
		for i, dev := range d.Grant.Devices {
			known, ok := inventory.Lookup(dev.Number)
			switch {
			case !ok || known != dev || dev.Problem != "":
				t.Errorf("%v is no sound device of the node", dev)
			case (dev.Kind == hca.KindUMAD || dev.Kind == hca.KindISSM) && !fabric:
				t.Errorf("%v without a rule that says so", dev)
			case dev.HCA != "" && dev.HCA != "mlx5_0" && dev.HCA != "mlx5_1":
				t.Errorf("%v, which the selectors do not pass", dev)
			case slices.Contains(d.Grant.Devices[:i], dev):
				t.Errorf("%v twice", dev)
			}
		}
	})
}
