// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/test/testing/expect"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
)

// Whatever a pod's author writes, it is either understood or answered with one bounded line of ASCII.
func FuzzAnnotation(f *testing.F) {
	for _, value := range annotations() {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		start := worked(t)
		asked, err := parseAnnotation(value)
		if took := worked(t) - start; took > 50*time.Millisecond {
			t.Errorf("%q takes %s", value, took)
		}
		if err != nil {
			if asked.optOut || asked.memlock != nil || asked.ipcLock != nil || asked.devices.isPresent() || asked.devices.none {
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

// annotations returns what the tables have, readable or not.
func annotations() []string {
	return slices.Concat(unreadableAnnotations, slices.Sorted(maps.Keys(readableAnnotations())))
}

// worked returns the processor time that this thread has had: what else the machine does is not in it.
func worked(t *testing.T) time.Duration {
	runtime.LockOSThread()
	var now unix.Timespec
	must.Succeed(t, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now))
	return time.Duration(now.Nano())
}

// memlocks are configurations with each way to write a limit, or to fail to.
var memlocks = []string{
	"memlock: 65536", "memlock: 9223372036854775807", "memlock: 500M", "memlock: 1e6", "memlock: 0.5Gi",
	"memlock: .inf", "memlock: 1e-99", "memlock: 1e999", "memlock: 0.3", "memlock: 8Ei", "memlock: " +
		strings.Repeat("9", 99) + "Gi",
}

// Whatever an administrator writes, it is either refused or a policy that can be shown and read again.
func FuzzConfig(f *testing.F) {
	for _, config := range slices.Concat(badConfigs, memlocks, []string{
		rules, restrictive, listed, everything, "{}", "# a: comment", "null", "a: &a [*a]", "a: &a {<<: *a}",
	}) {
		f.Add(config)
	}
	policyOf(f, everything) // it is taken
	node := fixedNode(f)
	f.Fuzz(func(t *testing.T, config string) {
		first, err := FromText([]byte(config))
		if err != nil {
			return
		}
		text, err := yaml.Marshal(first.Config())
		must.Succeed(t, err)
		second, err := FromText(text)
		if err != nil {
			t.Fatalf("%v in what config show would write:\n%s", err, text)
		}
		expect.Equal(t, "config show would write another configuration", first.Config(), second.Config())
		first.decide(subject{Container: Container{Namespace: "ml-a", Annotations: podAnnotation("true"), Devices: []Device{heldVerbs(0)}}, Resources: kubeletHolds("rdma/ib")}, node)
	})
}

// fixedNode is A100, read once: mlx5_0 down, mlx5_1 up, mlx5_bond_0 Ethernet.
func fixedNode(t testing.TB) Facts {
	return changed(func(*hca.Inventory) {})(t)
}

// What the kubelet does not report never gives more than any answer that it might have given. Whoever asks for nothing
// is refused only where every answer refuses.
func FuzzUnknown(f *testing.F) {
	for seed := range uint64(500) {
		f.Add(seed, "")
		f.Add(seed, "true")
		f.Add(seed, "{devices: all}")
		f.Add(seed, "{memlock: 1Mi, ipcLock: true}")
	}
	node := fixedNode(f)
	f.Fuzz(func(t *testing.T, seed uint64, annotation string) {
		r := rand.New(rand.NewPCG(seed, 1))
		config := randomConfig(r)
		p := policyOf(t, config)
		c := subject{Container: Container{Namespace: draw(r, "ml-a", "web"), Name: "c", MemoryLimit: draw[int64](r, 0,
			1<<20)}, Resources: unlisted()}
		if annotation != "" {
			c.Annotations = podAnnotation(annotation)
		}
		if r.IntN(2) == 0 {
			c.Devices = []Device{heldVerbs(1)}
		}
		unknown, refused := p.decide(c, node), true
		for _, told := range [][]string{nil, {"a/a"}, {"a/b"}, {"a/a", "a/b"}} {
			c.Resources = kubeletHolds(told...)
			known := p.decide(c, node)
			refused = refused && known.Refusal != nil
			if unknown.Grant != nil && known.Grant != nil && !atMost(*unknown.Grant, *known.Grant) {
				t.Errorf("unknown gives %s, and %q gives %s, by %s", unknown.Grant, told, known.Grant, config)
			}
		}
		if annotation == "" && unknown.Refusal != nil && !refused {
			t.Errorf("refused because of a candidate: %v, by %s", unknown.Refusal, config)
		}
	})
}

func draw[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// randomConfig makes a policy with rules by resource.
func randomConfig(r *rand.Rand) string {
	gives := func(memlocks ...string) string {
		return fmt.Sprintf("memlock: %s, ipcLock: %s, inject: {names: [%s], functions: [%s], linkLayers: [%s]",
			draw(r, memlocks...), draw(r, "true", "false", "requested", "always"), draw(r, "'*'", "mlx5_1", "mlx5_bond_0"),
			draw(r, "physical", "virtual, physical"), draw(r, "", "InfiniBand"))
	}
	config := "{optIn: {namespaces: [" + draw(r, "", "ml-*", "web") + "]}, " + gives("unlimited", "1Gi",
		"64Ki", "memory-limit") +
		", namespaces: [" + draw(r, "", "ml-*", "'*'") + "]}, rules: ["
	for i, match := range []string{"namespaces: [ml-*], resources: [a/a]", "resources: [a/b]",
		"namespaces: [ml-*]", "resources: [a/*]"} {
		if r.IntN(2) == 0 {
			config += fmt.Sprintf("{name: r%d, match: {%s}, %s, always: %t}}, ", i, match, gives("unlimited", "1Gi",
				"memory-limit", "unchanged"), r.IntN(2) == 0)
		}
	}
	return config + "]}"
}

// atMost reports whether a grant gives no more than another.
func atMost(less, more spec.Grant) bool {
	rank := map[spec.IPCLock]int{spec.IPCLockNo: 0, spec.IPCLockIfRequested: 1, spec.IPCLockUnlessDropped: 2,
		spec.IPCLockYes: 3}
	return less.Memlock <= more.Memlock && rank[less.IPCLock] <= rank[more.IPCLock] &&
		!slices.ContainsFunc(less.Devices, func(d hca.Device) bool { return !slices.Contains(more.Devices, d) })
}

// Whatever a pod's author chooses, the restrictive policy holds. The conditions are written down here, not taken from
// the code.
func FuzzDecide(f *testing.F) {
	f.Add("ml-a", "true", "", "c", "/dev/infiniband/uverbs0", int64(231), int64(192), int64(1<<30),
		"rdma/ib", false, uint8(0))
	f.Add("ml-big", "{memlock: 4Gi, ipcLock: true, devices: [mlx5_0]}", "runc", "b", "/dev/infiniband/uverbs1", int64(231),
		int64(193), int64(0), "rdma/big", true, uint8(0))
	f.Add("ml-big", "{memlock: 4Gi}", "", "c", "/dev/x", int64(231), int64(193), int64(-1), "rdma/small", false, uint8(1))
	f.Add("guest-1", "false", "kata", "c", "/dev/x", int64(231), int64(193), int64(-1), "rdma/ib", false, uint8(2))
	f.Add("fabric", "{devices: all}", "nvidia", "u", "/dev//infiniband/umad0", int64(10), int64(58), int64(0),
		"rdma/a", false, uint8(3))
	f.Add("web", "{memlock: unlimited}", "", "p", "", int64(-1), int64(1<<32+192), int64(1<<62), "a/b", true, uint8(4))
	for _, value := range annotations() {
		// null, in the place of an HCA
		f.Add("ml-a", value, "", "c", "/dev/infiniband/uverbs1", int64(1), int64(3), int64(-1), "", false, uint8(0))
	}
	f.Add("web", "true", "", "c", "/dev/infiniband/uverbs0", int64(231), int64(1<<32+192), int64(-1), "", false, uint8(0))
	f.Add("opt-1", "{devices: all}", "", "c", "", int64(1), int64(3), int64(-1), "", false, uint8(0))
	for kubelet := range uint8(3) {
		f.Add("ml-big", "true", "kata-qemu", "b", "/dev/x", int64(231), int64(192), int64(1<<30), "rdma/big", false, kubelet)
		for _, w := range words {
			f.Add("ml-big", w.word, "", "b", "/dev/infiniband/uverbs0", int64(231), int64(192), int64(1<<30),
				"rdma/a", false, kubelet)
		}
	}
	p, node := policyOf(f, restrictive), fixedNode(f)
	f.Fuzz(func(t *testing.T, namespace, annotation, handler, devType, devPath string, major, minor, memory int64,
		resource string, privileged bool, kubelet uint8) {
		c := subject{Container: Container{Namespace: namespace, Name: "c", RuntimeHandler: handler, Annotations: podAnnotation(annotation),
			Devices:    []Device{{Path: devPath, Type: devType, Major: major, Minor: minor}},
			AllDevices: privileged, MemoryLimit: memory}}
		kubeletFails := kubelet%3 == 2
		c.Resources = []func() ([]string, bool, error){kubeletHolds(resource), unlisted(resource), silent}[kubelet%3]
		d := p.decide(c, node)
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
		in := func(prefix string) bool {
			return strings.HasPrefix(namespace, prefix) && !strings.Contains(namespace, "/")
		}
		listed, fabric := in("ml-"), namespace == "fabric"
		holdsVerbs := !privileged && (devType == "c" || devType == "u") && major == 231 && minor >= 192 && minor <= 194
		holdsResource := !kubeletFails && strings.HasPrefix(resource, "rdma/") && strings.Count(resource, "/") == 1
		big := namespace == "ml-big" && resource == "rdma/big" && !kubeletFails
		switch {
		case strings.HasPrefix(handler, "kata") && !strings.Contains(handler, "/"):
			t.Error("a grant to a skipped handler")
		case !listed && !in("opt-") && !holdsVerbs && !holdsResource:
			t.Error("a grant without a signal")
		case slices.Contains(AnnotationVocabulary().OptOut, strings.TrimSpace(annotation)):
			t.Error("a grant in spite of the opt-out")
		case big && d.Grant.Memlock > 4<<30, !big && d.Grant.Memlock > 1<<30, d.Grant.Memlock == 0:
			t.Errorf("memlock is %s", d.Grant.Memlock)
		case !big && d.Grant.IPCLock != spec.IPCLockNo:
			t.Errorf("CAP_IPC_LOCK next to a finite memlock")
		case !listed && !fabric && len(d.Grant.Devices) > 0:
			t.Errorf("devices in a namespace that may not have any: %v", d.Grant.Devices)
		case holdsVerbs && len(d.Grant.Devices) > 0:
			t.Errorf("an allotment is added to: %v", d.Grant.Devices)
		}
		inventory, _, _ := node.HCAs()
		for i, dev := range d.Grant.Devices {
			known, ok := inventory.Lookup(dev.Number)
			switch {
			case !ok || known != dev || dev.Problem != "":
				t.Errorf("%v is not a sound device of the node", dev)
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

// Whatever a pod's author writes into another plugin's annotation, he gets no more than without it, and no refusal. What
// is kept of the annotation decides as all of it does.
func FuzzAuthor(f *testing.F) {
	for i, by := range injectors {
		for seed := range uint64(50) {
			f.Add(seed, by.key, by.value, uint8(i))
		}
	}
	for i, value := range []string{"", "[]", "- path: /dev/nvidia0", "nvidia.com/gpu=all", "- {path: x, major: 231}", "a: b",
		"- path: /dev/infiniband/uverbs1\n---\n- path: /dev/nvidia0", "[[]]", "- 231\n- 193", "- path: /dev/infiniband/"} {
		f.Add(uint64(i), "devices.gke.io/pod", value, uint8(i))
	}
	node := fixedNode(f)
	f.Fuzz(func(t *testing.T, seed uint64, key, value string, kubelet uint8) {
		r := rand.New(rand.NewPCG(seed, 2))
		config := randomConfig(r)
		p := policyOf(t, config)
		c := subject{Container: Container{Namespace: draw(r, "ml-a", "web"), Name: "c", MemoryLimit: 1 << 20,
			Devices: []Device{gpu(0), heldVerbs(1)}}, Resources: []func() ([]string, bool, error){kubeletHolds("a/c"), unlisted(), silent, kubeletHolds("rdma/ib")}[kubelet%4]}
		without := p.decide(c, node)
		c.Annotations = map[string]string{key: value}
		if strings.HasPrefix(key, AnnotationKey) {
			return
		}
		start := worked(t)
		with := p.decide(c, node)
		if took := worked(t) - start; took > 50*time.Millisecond {
			t.Errorf("%q takes %s", value, took)
		}
		checkOneLine(t, with.Reason)
		if with.Refusal != nil && without.Refusal == nil {
			t.Errorf("refused because of %s: %q: %v, by %s", key, value, with.Refusal, config)
		}
		if with.Grant != nil && (without.Grant == nil || !atMost(*with.Grant, *without.Grant)) {
			t.Errorf("%s: %q gives %s instead of %s, by %s", key, value, with.Grant, without.Grant, config)
		}
		kept := Annotations(c.Annotations, "c")
		c.Annotations = kept
		if again := p.decide(c, node); again.Signal != with.Signal || again.Authored != with.Authored {
			t.Errorf("what is kept of %s: %q decides %s %q, want %s %q", key, value, again.Signal, again.Authored, with.Signal,
				with.Authored)
		}
	})
}
