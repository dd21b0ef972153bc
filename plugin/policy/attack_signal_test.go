// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"github.com/rdma-spec/rdma-spec/spec"
)

// signalAttacks are made to count as an RDMA container, or not to where that is denied.
func signalAttacks() []attack {
	const noMOFED = "optIn: {nvidiaMOFED: {runtimeHandlers: [nvidia]}}"
	const denyResource = "rules: [{name: no-rdma, match: {resources: [rdma/*]}, deny: true}]"
	in := func(namespace string, c Container) Container { c.Namespace = namespace; return c }
	on := func(handler string, c Container) Container { c.RuntimeHandler = handler; return c }
	privileged := func(c Container) Container { c.AllDevices = true; return c }
	holding := func(resource string, c Container) Container { c.Resources = holds(resource); return c }
	plain := func(devices ...Device) Container {
		c := guest("", devices...)
		c.Annotations = nil
		return c
	}
	at := func(path, kind string, major, minor int64) Device {
		return Device{Path: path, Type: kind, Major: major, Minor: minor}
	}
	return []attack{
		// to opt in where an annotation does not count
		{guard: "opt-in", name: "opt-in-elsewhere", container: guest("true"), refused: CauseNamespace, says: "may not opt in"},
		{guard: "opt-in", name: "opt-in-privileged", container: privileged(guest("true", heldVerbs(1))), refused: CauseNamespace, says: "may not opt in"},
		{guard: "annotation-namespace", name: "namespace-that-ends-like-a-listed-one", container: in("not-ml-a", guest("true")), refused: CauseNamespace, says: "may not opt in"},
		{guard: "annotation-namespace", name: "namespace-in-capitals", container: in("ML-a", guest("true")), refused: CauseNamespace, says: "may not opt in"},
		{guard: "annotation-namespace", name: "namespace-look-alike", container: in("m\u217c-a", guest("true")), refused: CauseNamespace, says: "may not opt in"},
		{guard: "annotation-namespace", name: "namespace-with-a-slash", container: in("ml-a/b", guest("true")), refused: CauseNamespace, says: "may not opt in"},
		{guard: "annotation-namespace", name: "listed-namespace-as-a-label", container: guest("true").with(func(c *Container) { c.Labels = map[string]string{"namespace": "ml-a"} }), refused: CauseNamespace, says: "may not opt in"},
		{guard: "mofed-handler", name: "mofed-on-another-handler", config: noMOFED, container: on("runc", plain()).with(func(c *Container) { c.MOFEDInjected = true })},

		// to hold something that looks like a verbs device
		{guard: "character-device", name: "block-device-with-a-verbs-number", container: plain(gpu(0), at("/dev/infiniband/uverbs1", "b", 231, 193))},
		{guard: "character-device", name: "fifo-with-a-verbs-number", container: plain(gpu(0), at("/dev/infiniband/uverbs1", "p", 231, 193))},
		{guard: "character-device", name: "device-of-no-type", container: plain(gpu(0), at("/dev/infiniband/uverbs1", "", 231, 193))},
		{guard: "verbs-number", name: "null-device-at-a-verbs-path", container: plain(at("/dev/infiniband/uverbs1", "c", 1, 3))},
		{guard: "verbs-number", name: "gpu-at-a-verbs-path", container: plain(at("/dev/infiniband/uverbs1", "c", 195, 0))},
		{guard: "verbs-number", name: "umad-for-verbs", container: plain(at("/dev/infiniband/umad1", "c", 231, 1))},
		{guard: "verbs-number", name: "rdma-cm-for-verbs", container: plain(at("/dev/infiniband/rdma_cm", "c", 10, 58))},
		{guard: "verbs-number", name: "verbs-number-that-the-node-has-not", container: plain(at("/dev/infiniband/uverbs9", "c", 231, 201))},
		{guard: "device-number", name: "minor-that-wraps-around", container: plain(at("/dev/infiniband/uverbs1", "c", 231, 1<<32+193))},
		{guard: "device-number", name: "major-that-wraps-around", container: plain(at("/dev/infiniband/uverbs1", "c", 3<<32+231, 193))},
		{guard: "device-number", name: "negative-minor", container: plain(at("/dev/infiniband/uverbs1", "c", 231, 193-1<<32))},
		{guard: "privileged", name: "privileged", container: privileged(plain(gpu(0), heldVerbs(0), heldVerbs(1)))},
		{guard: "verbs-number", name: "device-that-hides-in-a-thousand", container: plain(thousandGPUs()...)},

		// to get out of a deny
		{guard: "deny", name: "denied-device", container: in("guest-1", plain(heldVerbs(1))), refused: CauseDenied, says: `"guests" denies`},
		{guard: "deny", name: "denied-annotation", container: in("guest-1", author("true")), refused: CauseDenied},
		{guard: "deny", name: "denied-resource", container: in("guest-1", holding("rdma/ib", plain())), refused: CauseDenied},
		{guard: "deny", name: "opt-out-to-escape", container: in("guest-1", author("false", heldVerbs(1))), refused: CauseDenied},
		{guard: "deny", name: "nonsense-to-escape", container: in("guest-1", author("{{{", heldVerbs(1))), refused: CauseDenied},
		{guard: "deny", name: "asks-for-less-to-escape", container: in("guest-1", author("{memlock: 1, ipcLock: false, devices: none}", heldVerbs(1))), refused: CauseDenied},
		{guard: "deny", name: "label-to-escape", container: in("guest-1", plain(heldVerbs(1))).with(func(c *Container) { c.Labels = map[string]string{"size": "big"} }), refused: CauseDenied},
		{guard: "deny", name: "handler-to-escape", container: on("runc", in("guest-1", plain(heldVerbs(1)))), refused: CauseDenied},
		{guard: "opt-out-denied", name: "opt-out-to-escape-by-resource", config: denyResource, container: holding("rdma/ib", guest("false")), refused: CauseDenied},
		{guard: "skipped-handler", name: "skipped-handler-with-a-device", container: on("kata-clh", plain(heldVerbs(1)))},
		{guard: "skipped-handler", name: "skipped-handler-with-an-annotation", container: on("runsc", author("{devices: all}"))},

		// to have the kubelet say nothing
		{guard: "kubelet-signal", name: "silent-kubelet-to-opt-in", container: guest("true").with(func(c *Container) { c.Resources = silent }), refused: CauseKubelet},
		{guard: "kubelet-ceiling", name: "silent-kubelet-to-lift-a-ceiling", config: "rules: [{match: {resources: [rdma/small]}, memlock: 1Mi}]",
			container: guest("true", heldVerbs(1)).with(func(c *Container) { c.Resources = silent }), refused: CauseKubelet},
		{guard: "kubelet-ceiling", name: "silent-kubelet-to-escape-a-deny", config: denyResource,
			container: guest("true", heldVerbs(1)).with(func(c *Container) { c.Resources = silent }), refused: CauseKubelet},
		{guard: "kubelet-ceiling", name: "silent-kubelet-without-an-annotation", config: "rules: [{match: {resources: [rdma/small]}, memlock: 1Mi}]",
			container: plain(heldVerbs(1)).with(func(c *Container) { c.Resources = silent })},
		{guard: "kubelet-annotated", name: "silent-kubelet-to-start-without-what-was-asked", config: "rules: [{match: {resources: [rdma/small]}, memlock: 1Mi}]",
			container: guest("{memlock: 1Gi}", heldVerbs(1)).with(func(c *Container) { c.Resources = silent }), refused: CauseKubelet},
	}
}

func thousandGPUs() []Device {
	var devices []Device
	for i := range 1000 {
		devices = append(devices, gpu(i))
	}
	return devices
}

// ceilingAttacks are made to have more than a rule gives.
func ceilingAttacks() []attack {
	const byMemory = "memlock: memory-limit"
	limited := func(bytes int64, c Container) Container { c.MemoryLimit = bytes; return c }
	labelled := func(namespace, size string, c Container) Container {
		c.Namespace, c.Labels = namespace, map[string]string{"size": size}
		return c
	}
	held := func(annotation string) Container {
		c := guest(annotation, heldVerbs(1))
		if annotation == "" {
			c.Annotations = nil
		}
		return c
	}
	return []attack{
		{guard: "no-memory-limit", name: "no-memory-limit", config: byMemory, container: limited(0, held("")), refused: CauseMemoryLimit, says: "set resources.limits.memory"},
		{guard: "no-memory-limit", name: "negative-memory-limit", config: byMemory, container: limited(-1, held("")), refused: CauseMemoryLimit},
		{guard: "no-memory-limit", name: "no-memory-limit-but-a-wish", config: byMemory, container: limited(0, held("{memlock: unlimited}")), refused: CauseMemoryLimit},
		{guard: "asked-memory-limit", name: "wish-for-a-memory-limit-that-is-not-there", container: limited(0, held("{memlock: memory-limit}")), refused: CauseMemoryLimit},
		{guard: "memlock-ceiling", name: "more-than-the-memory-limit", config: byMemory, container: held("{memlock: 2147483649}"), refused: CauseCeiling},
		{guard: "memlock-ceiling", name: "more-by-a-device-of-ones-own", container: held("{memlock: 2Gi}"), refused: CauseCeiling},
		{guard: "rule-namespaces", name: "label-of-a-rule-for-others", container: labelled("ml-a", "big", author("{memlock: 4Gi, devices: none}")), refused: CauseCeiling, says: "gives 1Gi"},
		{guard: "rule-labels", name: "namespace-of-a-rule-for-others", container: labelled("ml-big", "small", author("{memlock: 4Gi, devices: none}")), refused: CauseCeiling, says: "gives 1Gi"},
		{guard: "rule-labels", name: "label-without-its-value", container: labelled("ml-big", "", author("{ipcLock: true, devices: none}")), refused: CauseCeiling},
		{guard: "ipc-lock", name: "capability-next-to-a-limit", container: held("{ipcLock: true}"), refused: CauseCeiling, says: "would void the memlock"},
		{guard: "ipc-lock", name: "capability-next-to-a-limit-of-ones-own", config: "{}", container: held("{memlock: 1Mi, ipcLock: true}"), refused: CauseCeiling},
		{guard: "ipc-lock", name: "capability-unasked-next-to-a-limit", container: held(""), gets: little()},
		{guard: "ipc-lock", name: "capability-that-the-policy-never-gives", config: "ipcLock: false", container: held("{ipcLock: true}"), refused: CauseCeiling, says: "gives none"},
		{guard: "ipc-lock-dropped", name: "capability-in-spite-of-drop-all", config: "{}", container: held("{ipcLock: true}"), gets: &spec.Grant{Memlock: spec.Unlimited, IPCLock: spec.IPCLockUnlessDropped}},
	}
}
