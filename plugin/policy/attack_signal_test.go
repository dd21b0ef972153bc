// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"

	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// signalAttacks are made to count as an RDMA container.
func signalAttacks() []attack {
	const smaller = "rules: [{match: {resources: [rdma/small]}, memlock: 1Mi}]"
	in := func(namespace string, c subject) subject { c.Namespace = namespace; return c }
	on := func(handler string, c subject) subject { c.RuntimeHandler = handler; return c }
	privileged := func(c subject) subject { c.AllDevices = true; return c }
	asking := func(kubelet func() ([]string, bool, error), c subject) subject { c.Resources = kubelet; return c }
	own := func(annotation string, devices ...Device) subject {
		c := guest("", devices...)
		c.Annotations = map[string]string{AnnotationKey + "/container.c": annotation}
		return c
	}
	const mofed = "optIn: {mofedRuntimeHandlers: [nvidia*]}"
	asked := func(environment ...string) subject {
		return plain().with(func(c *subject) { c.MOFED = MOFED(environment) })
	}
	optIn := func(guard, name string, c subject) attack {
		return attack{guard: guard, name: name, container: c, refused: CauseNamespace, says: "to opt in by annotation"}
	}
	none := func(guard, name string, c subject) attack { return attack{guard: guard, name: name, container: c} }
	return []attack{
		// to opt in where an annotation does not count
		optIn("opt-in", "opt-in-elsewhere", guest("true")),
		optIn("opt-in", "opt-in-privileged", privileged(guest("true", heldVerbs(1)))),
		optIn("opt-in", "opt-in-by-devices", guest("{devices: all}")),
		optIn("opt-in", "opt-in-by-a-name", guest("{devices: [mlx5_1], memlock: 1}")),
		optIn("opt-in", "opt-in-by-the-capability", guest("{ipcLock: true, memlock: 1}")),
		optIn("opt-in", "opt-in-by-unlimited", guest("{memlock: unlimited}")),
		optIn("opt-in", "opt-in-in-an-init-container", asking(unlisted(), guest("true"))),
		optIn("annotation-namespace", "namespace-that-ends-like-a-listed-one", in("not-ml-a", guest("true"))),
		optIn("annotation-namespace", "namespace-in-capitals", in("ML-a", guest("true"))),
		optIn("annotation-namespace", "namespace-look-alike", in("m\u217c-a", guest("true"))),
		optIn("annotation-namespace", "namespace-with-a-slash", in("ml-a/b", guest("true"))),
		optIn("annotation-namespace", "namespace-of-a-rule-alone", in("fabric", guest("true"))),
		none("annotation-namespace", "less-is-no-opt-in", guest("{memlock: 1Mi}")),
		none("annotation-namespace", "less-is-no-opt-in-in-an-init-container", asking(unlisted(), guest("{ipcLock: false}"))),

		// to hold something that looks like a verbs device
		none("character-device", "block-device-with-a-verbs-number",
			plain(gpu(0), deviceAt("/dev/infiniband/uverbs1", "b", 231, 193))),
		none("character-device", "fifo-with-a-verbs-number", plain(gpu(0), deviceAt("/dev/infiniband/uverbs1", "p", 231, 193))),
		none("character-device", "device-of-no-type", plain(gpu(0), deviceAt("/dev/infiniband/uverbs1", "", 231, 193))),
		none("verbs-number", "null-device-at-a-verbs-path", plain(deviceAt("/dev/infiniband/uverbs1", "c", 1, 3))),
		none("verbs-number", "gpu-at-a-verbs-path", plain(deviceAt("/dev/infiniband/uverbs1", "c", 195, 0))),
		none("verbs-number", "umad-for-verbs", plain(deviceAt("/dev/infiniband/umad1", "c", 231, 1))),
		none("verbs-number", "rdma-cm-for-verbs", plain(deviceAt("/dev/infiniband/rdma_cm", "c", 10, 58))),
		none("verbs-number", "verbs-number-that-the-node-has-not", plain(deviceAt("/dev/infiniband/uverbs9", "c", 231, 201))),
		{guard: "verbs-number", name: "number-that-cannot-be-looked-up", node: unreadable, container: plain(heldVerbs(1))},
		none("device-number", "minor-that-wraps-around", plain(deviceAt("/dev/infiniband/uverbs1", "c", 231, 1<<32+193))),
		none("device-number", "major-that-wraps-around", plain(deviceAt("/dev/infiniband/uverbs1", "c", 3<<32+231, 193))),
		none("device-number", "negative-minor", plain(deviceAt("/dev/infiniband/uverbs1", "c", 231, 193-1<<32))),
		none("privileged", "privileged", privileged(plain(gpu(0), heldVerbs(0), heldVerbs(1)))),
		none("verbs-number", "device-that-hides-in-a-thousand", plain(thousandGPUs()...)),

		none("skipped-handler", "skipped-handler-with-a-device", on("kata-clh", plain(heldVerbs(1)))),
		none("skipped-handler", "skipped-handler-with-an-annotation", on("runsc", author("{devices: all}"))),
		{guard: "skipped-handler", name: "no-handler-is-skipped", config: "skipRuntimeHandlers: [\"\"]",
			container: on("", plain(heldVerbs(1)))},

		// to have NVIDIA's variable count
		none("mofed-handler", "variable-by-default", on("nvidia", asked("NVIDIA_MOFED=enabled"))),
		{guard: "mofed-handler", name: "variable-under-another-handler", config: mofed,
			container: on("runc", asked("NVIDIA_MOFED=enabled"))},
		{guard: "mofed-handler", name: "variable-under-a-handler-that-ends-like-a-listed-one", config: mofed,
			container: on("my-nvidia", asked("NVIDIA_MOFED=enabled"))},
		{guard: "mofed-handler", name: "variable-without-a-runtime-class", config: mofed,
			container: on("", asked("NVIDIA_MOFED=enabled"))},
		{guard: "mofed-value", name: "variable-with-another-value", config: mofed,
			container: on("nvidia", asked("NVIDIA_MOFED=Enabled"))},
		{guard: "mofed-value", name: "variable-that-is-empty", config: mofed, container: on("nvidia", asked("NVIDIA_MOFED="))},
		{guard: "mofed-value", name: "variable-that-is-turned-off-later", config: mofed,
			container: on("nvidia", asked("NVIDIA_MOFED=enabled", "NVIDIA_MOFED=disabled"))},

		// to have the kubelet say nothing
		{guard: "kubelet-signal", name: "silent-kubelet-to-opt-in", container: asking(silent,
			guest("true")), refused: CauseKubelet},
		{guard: "kubelet-signal", name: "silent-kubelet-and-less-for-this-very-container", container: asking(silent,
			own("{memlock: 1Mi}")), refused: CauseKubelet},
		{guard: "kubelet-ceiling", name: "silent-kubelet-to-lift-a-ceiling", config: smaller, container: asking(silent,
			guest("true", heldVerbs(1))), refused: CauseKubelet},
		{guard: "kubelet-ceiling", name: "silent-kubelet-without-an-annotation", config: smaller, container: asking(silent,
			plain(heldVerbs(1))), refused: CauseKubelet},
		{guard: "kubelet-ceiling", name: "silent-kubelet-to-start-without-what-was-asked", config: smaller,
			container: asking(silent, guest("{memlock: 1Gi}", heldVerbs(1))), refused: CauseKubelet},
		{guard: "kubelet-ceiling", name: "silent-kubelet-in-a-listed-namespace", container: asking(silent,
			in("ml-big", author("true"))), refused: CauseKubelet},
		{guard: "kubelet-ceiling", name: "no-kubelet-to-ask", config: smaller, container: asking(nil, plain(heldVerbs(1))),
			refused: CauseKubelet, says: "the node has no kubelet"},
	}
}

// plain is a container whose author wrote nothing.
func plain(devices ...Device) subject {
	c := guest("", devices...)
	c.Annotations = nil
	return c
}

// unknownAttacks are made to have more where the kubelet does not report which resources a container holds: in an
// ordinary init container, or by a DRA claim. What a container gets then is the least of what the rules give that might
// match.
func unknownAttacks() []attack {
	rule := func(gives string) string { return "rules: [{name: a, match: {resources: [rdma/a]}, " + gives + "}]" }
	listed := func(gives string) string { return rule(gives) + "\ninject: {namespaces: [ml-*]}" }
	always := "inject: {always: true, names: ['mlx5_*']}"
	init := func(c subject) subject { c.Resources = unlisted(); return c }
	limited := func(bytes int64, c subject) subject { c.MemoryLimit = bytes; return c }
	one := func(memlock spec.Limit) *spec.Grant {
		return &spec.Grant{Memlock: memlock, Devices: []hca.Device{verbs(1, "mlx5_1"), rdmaCM()}}
	}
	return []attack{
		{guard: "candidate", name: "init-container-above-a-rule", config: rule("memlock: 1Mi"),
			container: init(plain(heldVerbs(1))), gets: &spec.Grant{Memlock: 1 << 20}},
		{guard: "candidate", name: "init-container-above-a-rule-without-the-capability", config: rule("ipcLock: false"),
			container: init(plain(heldVerbs(1))), gets: &spec.Grant{Memlock: spec.Unlimited}},
		{guard: "candidate", name: "init-container-above-an-unchanged-memlock", config: rule("memlock: unchanged"),
			container: init(plain(heldVerbs(1))), gets: &spec.Grant{}},
		{guard: "candidate", name: "init-container-above-its-memory-limit", config: rule("memlock: memory-limit"),
			container: init(plain(heldVerbs(1))), gets: &spec.Grant{Memlock: 2 << 30}},
		{guard: "no-memory-limit", name: "init-container-without-a-memory-limit-starts",
			config:    "rules: [{match: {namespaces: [web]}, memlock: memory-limit}]",
			container: limited(0, init(plain(heldVerbs(1)))), refused: CauseMemoryLimit},
		{guard: "candidate", name: "init-container-without-a-memory-limit", config: rule("memlock: memory-limit"),
			container: limited(0, init(plain(heldVerbs(1)))), gets: &spec.Grant{}},
		{guard: "candidate", name: "init-container-that-asks-for-more", config: rule("memlock: 1Mi"),
			container: init(guest("{memlock: 2Mi}", heldVerbs(1))), refused: CauseCeiling, says: "grants at most 1Mi"},
		{guard: "candidate", name: "init-container-that-asks-for-the-capability", config: rule("ipcLock: false"),
			container: init(guest("{ipcLock: true}", heldVerbs(1))), refused: CauseCeiling},
		{guard: "candidate", name: "claim-beside-another-resource", config: rule("memlock: 1Mi"),
			container: plain(heldVerbs(1)).with(func(c *subject) { c.Resources = unlisted("nvidia.com/gpu") }),
			gets:      &spec.Grant{Memlock: 1 << 20}},
		{guard: "unexplained-device", name: "device-that-no-resource-explains", config: rule("memlock: 1Mi"),
			container: plain(heldVerbs(1)).with(func(c *subject) { c.Resources = kubeletHolds() }), gets: &spec.Grant{Memlock: 1 << 20}},
		{guard: "unexplained-device", name: "device-that-an-annotation-claims-to-explain", config: listed("memlock: 1Mi"),
			container: author("true", heldVerbs(1)), gets: &spec.Grant{Memlock: 1 << 20}},
		{guard: "candidate", name: "init-container-with-other-hcas", config: listed("inject: {names: [mlx5_1]}"),
			container: init(author("{devices: [mlx5_bond_0]}")), refused: CauseCeiling, says: "exclude"},
		{guard: "candidate", name: "init-container-of-a-rule-that-passes-no-hca", config: listed("inject: {names: [mlx5_9]}"),
			container: init(author("{devices: all}")), refused: CauseHCA},
		{guard: "candidate", name: "init-container-of-a-rule-that-passes-no-hca-says-true",
			config: listed("inject: {names: [mlx5_9]}"), container: init(author("true")), gets: unlimited()},
		{guard: "least-memlock", name: "rule-for-resources-that-gives-more", config: "memlock: 1Mi\n" + rule("memlock: 1Gi"),
			container: init(plain(heldVerbs(1))), gets: &spec.Grant{Memlock: 1 << 20}},
		{guard: "least-memlock", name: "least-of-three",
			config: "memlock: 3Mi\nrules: [{match: {resources: [a/b]}, memlock: 2Mi}, {match: {resources: [c/d]}, memlock: " +
				"4Mi}]",
			container: init(plain(heldVerbs(1))), gets: &spec.Grant{Memlock: 2 << 20}},
		{guard: "least-ipc-lock", name: "rule-for-resources-that-always-gives-the-capability",
			config: rule("ipcLock: always"), container: init(plain(heldVerbs(1))), gets: unlimited()},
		{guard: "least-ipc-lock", name: "rule-for-resources-that-gives-the-capability-unasked",
			config: "ipcLock: requested\n" + rule("ipcLock: true"), container: init(plain(heldVerbs(1))),
			gets: &spec.Grant{Memlock: spec.Unlimited, IPCLock: spec.IPCLockIfRequested}},
		{guard: "least-ipc-lock", name: "capability-beside-the-lower-limit", config: rule("memlock: 1Mi, ipcLock: always"),
			container: init(plain(heldVerbs(1))), gets: &spec.Grant{Memlock: 1 << 20}},
		{guard: "least-always", name: "rule-that-injects-unasked", config: rule(always) + "\noptIn: {namespaces: [web]}",
			container: init(guest("true")), gets: unlimited()},
		{guard: "least-always", name: "rule-that-opens-injection", config: rule(always) + "\noptIn: {namespaces: [web]}",
			container: init(guest("{devices: all}")), refused: CauseNamespace},
		{guard: "least-selectors", name: "rule-that-passes-more-hcas",
			config: "{memlock: 1Mi, inject: {namespaces: [ml-*], names: [mlx5_1]}, rules: [{match: {resources: [a/b]}, " +
				"inject: {names: [mlx5_1]}}, {match: {namespaces: [ml-*]}, inject: {names: ['*']}}]}",
			container: init(author("{devices: all}")), gets: &spec.Grant{Memlock: 1 << 20,
				Devices: []hca.Device{verbs(1, "mlx5_1"), rdmaCM()}}},
		{guard: "management", name: "management-of-one-candidate",
			config: "{memlock: 1Mi, optIn: {namespaces: [ml-*]}, inject: {names: [mlx5_1]}, rules: [{match: {namespaces: " +
				"[ml-*], resources: [a/b]}, inject: {always: true}}, {match: {namespaces: [ml-*]}, inject: {management: true, " +
				"always: true}}]}",
			container: init(author("true")), gets: one(1 << 20)},
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
	limited := func(bytes int64, c subject) subject { c.MemoryLimit = bytes; return c }
	big := func(resource string, c subject) subject {
		c.Namespace, c.Resources = "ml-big", kubeletHolds(resource)
		return c
	}
	const unchanged = "rules: [{match: {namespaces: [web]}, memlock: unchanged}]"
	held := func(annotation string) subject {
		c := guest(annotation, heldVerbs(1))
		if annotation == "" {
			c.Annotations = nil
		}
		return c
	}
	return []attack{
		{guard: "no-memory-limit", name: "no-memory-limit", config: byMemory, container: limited(0, held("")),
			refused: CauseMemoryLimit, says: "set resources.limits.memory"},
		{guard: "no-memory-limit", name: "negative-memory-limit", config: byMemory, container: limited(-1, held("")),
			refused: CauseMemoryLimit},
		{guard: "no-memory-limit", name: "no-memory-limit-but-a-wish", config: byMemory,
			container: limited(0, held("{memlock: unlimited}")), refused: CauseMemoryLimit},
		{guard: "asked-memory-limit", name: "wish-for-a-memory-limit-that-is-not-there",
			container: limited(0, held("{memlock: memory-limit}")), refused: CauseMemoryLimit},
		{guard: "startable", name: "more-than-the-runtime-can-start", config: "inject: {namespaces: [ml-*]}",
			node: startable(1 << 30), container: author("{memlock: 1073741825, devices: none}"), refused: CauseCeiling,
			says: "no container with a memlock above 1Gi can start"},
		{guard: "startable", name: "as-much-as-the-policy-gives-is-cut", node: startable(1 << 20),
			container: held(""), gets: &spec.Grant{Memlock: 1 << 20}},
		{guard: "memlock-ceiling", name: "more-than-the-memory-limit", config: byMemory,
			container: held("{memlock: 2147483649}"), refused: CauseCeiling},
		{guard: "memlock-ceiling", name: "more-by-a-device-of-ones-own",
			container: held("{memlock: 2Gi}"), refused: CauseCeiling},
		{guard: "rule-namespaces", name: "resource-of-a-rule-for-others",
			config: "{memlock: 1Gi, inject: {namespaces: [ml-*]}, rules: [{match: {namespaces: [ml-big], resources: " +
				"[rdma/big]}, memlock: 4Gi}]}", refused: CauseCeiling, says: "grants at most 1Gi",
			container: author("{memlock: 4Gi, devices: none}").with(func(c *subject) { c.Resources = kubeletHolds("rdma/big") })},
		{guard: "least-memlock", name: "namespace-of-a-rule-for-others",
			container: big("", author("{memlock: 4Gi, devices: none}")).with(func(c *subject) { c.Resources = unlisted() }),
			refused:   CauseCeiling, says: "grants at most 1Gi"},
		{guard: "least-ipc-lock", name: "capability-of-a-rule-for-others",
			container: author("{ipcLock: true, devices: none}").with(func(c *subject) {
				c.Namespace, c.Resources = "ml-big",
					unlisted()
			}), refused: CauseCeiling},
		{guard: "memlock-unchanged", name: "memlock-where-it-is-left-as-it-is", config: unchanged,
			container: held("{memlock: 1}"), refused: CauseCeiling, says: "leaves memlock unchanged"},
		{guard: "ipc-lock", name: "capability-beside-an-unchanged-memlock", config: unchanged,
			container: held(""), gets: &spec.Grant{}},
		{guard: "ipc-lock", name: "capability-asked-for-beside-an-unchanged-memlock", config: unchanged,
			container: held("{ipcLock: true}"), refused: CauseCeiling, says: "does not grant IPC_LOCK"},
		{guard: "node-memory", name: "memory-limit-of-a-pebibyte", config: byMemory, node: smallNode,
			container: limited(1<<50, held("")), gets: &spec.Grant{Memlock: 64 << 30}},
		{guard: "node-memory", name: "memory-limit-of-a-pebibyte-in-the-annotation", config: "{}", node: smallNode,
			container: limited(1<<50, held("{memlock: memory-limit}")), gets: &spec.Grant{Memlock: 64 << 30}},
		{guard: "memlock-ceiling", name: "memlock-above-the-nodes-memory", config: byMemory, node: smallNode,
			container: limited(1<<50, held("{memlock: 65Gi}")), refused: CauseCeiling, says: "grants at most 64Gi"},
		{guard: "ipc-lock", name: "capability-next-to-a-limit", container: held("{ipcLock: true}"), refused: CauseCeiling,
			says: "overrides the granted memlock"},
		{guard: "ipc-lock", name: "capability-next-to-a-limit-of-ones-own", config: "{}",
			container: held("{memlock: 1Mi, ipcLock: true}"), refused: CauseCeiling},
		{guard: "ipc-lock", name: "capability-unasked-next-to-a-limit", container: held(""), gets: little()},
		{guard: "ipc-lock", name: "capability-that-the-policy-never-gives", config: "ipcLock: false",
			container: held("{ipcLock: true}"), refused: CauseCeiling, says: "does not grant IPC_LOCK"},
		{guard: "ipc-lock-dropped", name: "capability-in-spite-of-drop-all", config: "{}", container: held("{ipcLock: true}"),
			gets: &spec.Grant{Memlock: spec.Unlimited, IPCLock: spec.IPCLockUnlessDropped}},
		{guard: "ipc-lock-requested", name: "capability-that-admission-has-not-seen", config: "ipcLock: requested",
			container: held(""), gets: &spec.Grant{Memlock: spec.Unlimited, IPCLock: spec.IPCLockIfRequested}},
		{guard: "ipc-lock-requested", name: "capability-asked-for-where-admission-does-not-see-it",
			config: "ipcLock: requested", container: held("{ipcLock: true}"),
			gets: &spec.Grant{Memlock: spec.Unlimited, IPCLock: spec.IPCLockIfRequested}},
		{guard: "ipc-lock", name: "requested-capability-next-to-a-limit", config: "{memlock: 1Gi, ipcLock: requested}",
			container: held("{ipcLock: true}"), refused: CauseCeiling, says: "overrides the granted memlock"},
	}
}

// smallNode is A100 with 64 GiB of memory.
func smallNode(t testing.TB) Facts {
	n := changed(func(*hca.Inventory) {})(t)
	n.Memory = 64 << 30
	return n
}

// noPolicyAttacks are tried on a node whose configuration cannot be read.
func noPolicyAttacks() []attack {
	row := func(name string, c subject) attack {
		return attack{guard: "no-policy", name: "no-policy-" + name, missing: true, container: c, refused: CauseNoPolicy}
	}
	unasked := func(d Device) subject {
		return guest("", d).with(func(c *subject) { c.Annotations = nil })
	}
	return []attack{
		row("device", unasked(heldVerbs(1))),
		row("annotation", guest("true")),
		row("less", guest("{memlock: 1Mi}", heldVerbs(1))),
		{guard: "privileged", name: "no-policy-privileged", missing: true,
			container: unasked(heldVerbs(1)).with(func(c *subject) { c.AllDevices = true })},
		{guard: "verbs-number", name: "no-policy-look-alike", missing: true,
			container: unasked(deviceAt("/dev/infiniband/uverbs1", "c", 1, 3))},
	}
}
