// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"github.com/rdma-spec/rdma-spec/plugin/inventory"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/race"
)

// walk makes random policies, and containers that they are about.
type walk struct {
	*rand.Rand
	verbs []hca.Device
}

func (w walk) pick(words ...string) string { return words[w.IntN(len(words))] }

// policy returns a configuration, and what it says.
func (w walk) policy() (text string, p *policy.Policy) {
	for {
		text = w.config()
		if p, err := policy.FromText([]byte(text)); err == nil {
			return text, p
		}
	}
}

// config returns a configuration; it may be one that is refused.
func (w walk) config() string {
	var text strings.Builder
	fmt.Fprintf(&text, "memlock: %s\nipcLock: %s\noptIn: {devices: %s, resources: [%s], namespaces: [%s]}\n",
		w.pick("unlimited", "1Gi", "memory-limit"), w.pick("true", "false", "requested", "always"),
		w.pick("true", "true", "false"), w.pick("", "rdma/*", "rdma/a"), w.pick("", "ml", "o*"))
	fmt.Fprintf(&text, "inject: {namespaces: [%s], names: [%s]}\nrules:\n", w.pick("", "ml", "x"),
		w.pick(`"*"`, "mlx5_1", "mlx5_0"))
	for i := range w.IntN(4) {
		match := strings.Trim(w.pick("", "namespaces: [ml]", "namespaces: [m*]")+", "+
			w.pick("resources: [rdma/c]", "resources: [rdma/a]", "resources: [rdma/b]", "resources: [rdma/*]"), ", ")
		fmt.Fprintf(&text, "- {name: r%d, match: {%s}%s%s%s}\n", i, match,
			w.pick("", ", memlock: unlimited", ", memlock: 2Gi", ", memlock: unchanged", ", memlock: memory-limit"),
			w.pick("", ", ipcLock: false", ", ipcLock: always", ", ipcLock: true"),
			w.pick("", ", inject: {always: true}", ", inject: {names: [mlx5_1]}"))
	}
	return text.String()
}

// container returns a container and its pod, and the kubelet's answer about it.
func (w walk) container() (*api.PodSandbox, *api.Container, *fakeKubelet) {
	in := &api.PodSandbox{Id: "sandbox", Name: "train-0", Namespace: w.pick("ml", "other")}
	if value := w.pick("", "", "true", "false", "{memlock: 1Gi}", "{memlock: unlimited}", "{devices: all}",
		"{devices: [mlx5_1]}", "{memlock: unlimited, devices: all}", "{ipcLock: true}", "{ipcLock: false}", "{devices: none}"); value != "" {
		in.Annotations = map[string]string{policy.AnnotationKey + w.pick("", "/pod", "/container.main"): value}
	}
	ctr := &api.Container{Id: "container", PodSandboxId: in.Id, Name: "main", Linux: &api.LinuxContainer{}}
	if w.IntN(2) == 0 {
		d := w.verbs[w.IntN(len(w.verbs))]
		ctr.Linux.Devices = []*api.LinuxDevice{{Path: d.Path, Type: "c", Major: int64(d.Major), Minor: int64(d.Minor)}}
	}
	if limit := []int64{0, 1 << 29, 1 << 33}[w.IntN(3)]; limit != 0 {
		ctr.Linux.Resources = &api.LinuxResources{Memory: &api.LinuxMemory{Limit: api.Int64(limit)}}
	}
	kubelet := &fakeKubelet{unknown: w.IntN(4) == 0}
	if names := w.pick("", "rdma/a", "rdma/b", "rdma/c", "rdma/a,rdma/b", "nvidia.com/gpu"); names != "" {
		kubelet.names = strings.Split(names, ",")
	}
	if w.IntN(8) == 0 {
		kubelet.err = errors.New("no answer in time")
	}
	return in, ctr, kubelet
}

// more says what a grant gives beyond another; "" is nothing.
func more(a, b *spec.Grant) string {
	rank := map[spec.IPCLock]int{spec.IPCLockIfRequested: 1, spec.IPCLockUnlessDropped: 2, spec.IPCLockYes: 3}
	if a == nil {
		a = &spec.Grant{}
	}
	if b == nil {
		b = &spec.Grant{}
	}
	switch {
	case a.Memlock > b.Memlock:
		return fmt.Sprintf("memlock %s > %s", a.Memlock, b.Memlock)
	case rank[a.IPCLock] > rank[b.IPCLock]:
		return fmt.Sprintf("IPC_LOCK %s > %s", a.IPCLock, b.IPCLock)
	}
	return a.Lacks(hasOf(&policy.Container{Devices: devicesOf(b), Memlock: spec.Rlimit{Soft: spec.Unlimited}})).DeviceNames()
}

func devicesOf(grant *spec.Grant) (devices []policy.Device) {
	for _, d := range grant.Devices {
		devices = append(devices, deviceOf(d))
	}
	return devices
}

// allAnswer waits until each HCA that the policy depends on has answered: a slow one is refused, and a moment later
// not.
func allAnswer(t *testing.T, hcas *inventory.Inventory, p *policy.Policy) {
	t.Helper()
	wanted, _ := p.Wants()
	await.That(t, await.Timeout, "all HCAs answer", func() bool {
		node, _, err := hcas.HCAs(t.Context())
		return err == nil && !slices.ContainsFunc(node.HCAs, func(h hca.HCA) bool { return h.Unread != "" && wanted(&h) })
	})
}

// A walk over random policies and containers: what the plugin has answered leaves the validator nothing to refuse and
// repair nothing to raise, and what is asked for where nobody may ask never gives more.
func TestWalk(t *testing.T) {
	if race.Detector {
		t.Skip("it is about decisions, which one goroutine makes")
	}
	const seed, steps = 7, 2000
	root := hcatest.V100(t)
	node, err := hca.Scan(root)
	must.Succeed(t, err)
	w := walk{Rand: rand.New(rand.NewPCG(seed, seed))}
	for _, h := range node.HCAs {
		if d, ok := h.Verbs(); ok {
			w.verbs = append(w.verbs, d)
		}
	}
	hcas := inventoryOf(t, root)
	adjusting := New(Options{Name: "rdma", Inventory: hcas, Log: quiet(), StoredSpecs: unusedSpecs{}})
	validating := New(Options{Name: "rdma-validator", Inventory: hcas, Log: quiet(), Validate: true})
	adjusting.keepsSpecs.Store(true)
	seen := map[string]int{}
	var text string
	var p *policy.Policy
	for step := range steps {
		if step%4 == 0 { // a policy has the HCAs read again, which takes longer than decisions
			text, p = w.policy()
			adjusting.Use(p, "walk", nil)
			validating.Use(p, "walk", nil)
			allAnswer(t, hcas, p)
		}
		in, ctr, kubelet := w.container()
		about := fmt.Sprintf("step %d: %v, %v, %v, holds %v (unknown %t, %v)\n%s", step, in.GetAnnotations(),
			ctr.GetLinux(), in.GetNamespace(), kubelet.names, kubelet.unknown, kubelet.err, text)
		adjusting.Resources, validating.Resources = kubelet, kubelet
		before := ContainerOf(in, ctr)
		decided := adjusting.decide(t.Context(), in, before)

		answer, _, err := adjusting.CreateContainer(t.Context(), in, ctr)
		if err != nil {
			seen["refused"]++
			if decided.Refusal.Cause == policy.CauseKubelet {
				continue
			}
		}
		invalid := validating.ValidateContainerAdjustment(t.Context(),
			&api.ValidateContainerAdjustmentRequest{Pod: in, Container: ctr, Adjust: answer})
		if (err == nil) != (invalid == nil) {
			t.Errorf("the plugin says %v, the validator %v; %s", err, invalid, about)
		}
		if err != nil {
			continue
		}

		plain, config := before, p.Config()
		may := func(globs []string) bool {
			return len(globs) > 0 && (globs[0] == in.GetNamespace() || globs[0] == "o*" && in.GetNamespace() == "other")
		}
		plain.Annotations = nil
		facts := adjusting.facts
		facts.Resources = func() ([]string, bool, error) { return kubelet.names, !kubelet.unknown, kubelet.err }
		if without := p.Decide(plain, facts); without.Refusal == nil && !may(config.OptIn.Namespaces) &&
			!may(config.Inject.Namespaces) {
			if gives := more(decided.Grant, without.Grant); gives != "" {
				t.Errorf("an annotation gives more: %s; %s", gives, about)
			}
		}
		if decided.Grant != nil {
			seen["granted"]++
			if decided.Unknown {
				seen["reduced grant"]++
			}
			if len(decided.Grant.Devices) > 0 {
				seen["injected"]++
			}
		}
		if t.Failed() {
			return
		}
	}
	t.Log(seen)
	for _, kind := range []string{"granted", "refused", "injected", "reduced grant"} {
		if seen[kind] < 50 {
			t.Errorf("%d containers are %s: the walk proves too little", seen[kind], kind)
		}
	}
}
