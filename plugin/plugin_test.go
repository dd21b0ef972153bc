// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"io"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/sirupsen/logrus"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/rdma-spec/rdma-spec/plugin/inventory"
	"github.com/rdma-spec/rdma-spec/plugin/nritest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/expect"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/output"
)

// running is a plugin that runs against a runtime.
type running struct {
	*Plugin
	root    string           // of the node; "" where the test gave an inventory
	runtime *nritest.Runtime // that it has registered with; nil where the test did not ask for one
	log     *output.Buffer
	stop    context.CancelFunc
	ended   chan error
}

// inventoryOf makes the inventory of a node, which has been read, and follows the node until the test ends.
func inventoryOf(t testing.TB, root string) *inventory.Inventory {
	t.Helper()
	hcas := inventory.New(root, quiet())
	await.Beside(t, hcas.Run)
	if _, _, err := hcas.HCAs(t.Context()); err != nil {
		t.Fatal(err)
	}
	return hcas
}

func mustPolicy(t testing.TB, text string) *policy.Policy {
	t.Helper()
	p, err := policy.FromText([]byte(text))
	must.Succeed(t, err)
	return p
}

// run starts a plugin; it ends with the test.
func run(t testing.TB, o Options) *running {
	t.Helper()
	r := &running{log: &output.Buffer{}, ended: make(chan error, 1)}
	log := logrus.New()
	log.SetOutput(r.log)
	if o.Log == nil {
		o.Log = log
	}
	o.Name, o.Index = "rdma", "90"
	if o.Validate {
		o.Name = "rdma-validator"
	}
	if o.Inventory == nil {
		r.root = hcatest.V100(t)
		o.Inventory = inventoryOf(t, r.root)
	}
	r.Plugin = New(o)
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() { r.ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-r.ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return r
}

// started is a containerd that runs, with containers.
func started(t testing.TB, existing ...*api.Container) *nritest.Runtime {
	t.Helper()
	runtime := nritest.New(t, "containerd", "v2.4.2")
	runtime.SetExisting(existing)
	runtime.Start(t)
	return runtime
}

// registered starts a containerd and a plugin, and waits until they know each other.
func registered(t testing.TB, o Options) (*nritest.Runtime, *running) {
	t.Helper()
	runtime := started(t)
	return runtime, registeredWith(t, runtime, o)
}

// registeredWith starts a plugin, and waits until a runtime knows it.
func registeredWith(t testing.TB, runtime *nritest.Runtime, o Options) *running {
	t.Helper()
	before := runtime.Synchronised()
	o.Socket = runtime.Socket
	p := run(t, o)
	await.That(t, await.Timeout, "registered", func() bool { return runtime.Synchronised() > before })
	p.runtime = runtime
	return p
}

// unregistered is a plugin that nothing runs, on a node without HCAs.
func unregistered(o Options) *Plugin {
	o.Inventory = inventory.New("/", quiet())
	if o.Log == nil {
		o.Log = quiet()
	}
	return New(o)
}

// podIn is a pod of a namespace, with an annotation; "": none.
func podIn(namespace, annotation string) *api.PodSandbox {
	sandbox := &api.PodSandbox{Id: "sandbox", Name: "train-0", Namespace: namespace}
	if annotation != "" {
		sandbox.Annotations = map[string]string{policy.AnnotationKey: annotation}
	}
	return sandbox
}

var pod = &api.PodSandbox{Id: "sandbox", Name: "train-0", Namespace: "ml"}

// verbsContainer is a container to which a device plugin has given the first HCA of a node.
func verbsContainer(t testing.TB, root string) *api.Container {
	t.Helper()
	verbs := firstVerbs(t, root)
	return &api.Container{Id: "container", PodSandboxId: pod.Id, Name: "main",
		Linux: &api.LinuxContainer{Devices: []*api.LinuxDevice{
			{Path: verbs.Path, Type: "c", Major: int64(verbs.Major), Minor: int64(verbs.Minor)},
		}}}
}

func firstVerbs(t testing.TB, root string) hca.Device {
	t.Helper()
	node, err := hca.Scan(root)
	must.Succeed(t, err)
	verbs, ok := node.HCAs[0].Verbs()
	if !ok {
		t.Fatal("the fixture's first HCA has no verbs device")
	}
	return verbs
}

func TestCreateContainer_Unrelated(t *testing.T) {
	runtime, p := registered(t, Options{Policy: mustPolicy(t, "{}")})
	got, err := runtime.Create(t.Context(), pod, &api.Container{Id: "container", Name: "main"})
	must.Succeed(t, err)
	// This is how NRI itself spells that no plugin adjusted anything.
	nothing := &api.ContainerAdjustment{Linux: &api.LinuxContainerAdjustment{Resources: &api.LinuxResources{Memory: &api.LinuxMemory{}, Cpu: &api.LinuxCPU{}}}}
	expect.Equal(t, "adjustment", nothing, got, protocmp.Transform(), protocmp.IgnoreEmptyMessages())
	if strings.Contains(p.log.String(), "train-0") {
		t.Errorf("the log speaks of it:\n%s", p.log)
	}
}

func TestCreateContainer_Refused(t *testing.T) {
	runtime, p := registered(t, Options{Policy: mustPolicy(t, "{}")})
	for range 1000 {
		_, err := runtime.Create(t.Context(), podIn("ml", "true"), &api.Container{Id: "container", Name: "main"})
		if err == nil || !strings.Contains(err.Error(),
			`rdma: pod ml/train-0, container main: the policy does not allow pods in namespace "ml" to opt in by annotation`) {
			t.Fatalf("creation: %v", err)
		}
	}
	if n := strings.Count(p.log.String(), "refused"); n != 1 {
		t.Errorf("%d lines for a thousand refusals, want one", n)
	}
}

// TestCreateContainer_WarnsOnce: its containers, and the tries to create them, have one warning.
func TestCreateContainer_WarnsOnce(t *testing.T) {
	runtime, p := registered(t, Options{Policy: mustPolicy(t, "{}")})
	for _, name := range []string{"main", "sidecar", "main"} {
		ctr := verbsContainer(t, p.root)
		ctr.Id = name
		ctr.Name = name
		_, err := runtime.Create(t.Context(), podIn("ml", "{devices: all}"), ctr)
		must.Succeed(t, err)
	}
	if n := strings.Count(p.log.String(), "requests all HCAs"); n != 1 {
		t.Errorf("%d warnings, want one:\n%s", n, p.log)
	}
}

// What a container has already is not set again: that would fail its creation.
func TestAdjust(t *testing.T) {
	verbs := hca.Device{Kind: hca.KindVerbs, Path: "/dev/infiniband/uverbs3", Number: hca.Number{Major: 231, Minor: 195},
		Mode: hca.Mode(0o666 | os.ModeCharDevice), UID: 0, GID: 7}
	grant := spec.Grant{Memlock: spec.Unlimited, Devices: []hca.Device{verbs}}
	device := []*api.LinuxDevice{{Path: verbs.Path, Type: "c", Major: 231, Minor: 195,
		FileMode: api.FileMode(uint32(0o666)), Uid: api.UInt32(uint32(0)), Gid: api.UInt32(uint32(7))}}
	raised := []*api.POSIXRlimit{{Type: "RLIMIT_MEMLOCK", Hard: math.MaxUint64, Soft: math.MaxUint64}}
	for _, test := range []struct {
		name        string
		soft, hard  uint64
		has         []*api.LinuxDevice
		wantRlimits []*api.POSIXRlimit
		wantDevices []*api.LinuxDevice
	}{
		{"suffices", math.MaxUint64, math.MaxUint64, device, nil, nil},
		{"suffices, as signed", math.MaxInt64, math.MaxInt64, device, nil, nil},
		{"too low", 1 << 23, 1 << 23, nil, raised, device},
		{"soft too low", 1 << 23, math.MaxUint64, nil, raised, device},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := adjust(ContainerOf(pod, &api.Container{Rlimits: []*api.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 1, Soft: 1},
				{Type: "RLIMIT_MEMLOCK", Hard: test.hard, Soft: test.soft}}, Linux: &api.LinuxContainer{Devices: test.has}}), grant)
			expect.Equal(t, "rlimits", test.wantRlimits, got.GetRlimits(), protocmp.Transform())
			expect.Equal(t, "devices", test.wantDevices, got.GetLinux().GetDevices(), protocmp.Transform())
		})
	}
	if fields := fieldsOf(grant); fields["devices"] != "uverbs3" || fields["memlock"] != "unlimited" {
		t.Errorf("the log would say %v", fields)
	}
}

func TestConfigure_OldRuntime(t *testing.T) {
	for _, test := range []struct {
		version  string
		validate bool
		says     string
	}{
		{"v1.7.5", false, "containerd v1.7.5 silently drops rlimits from NRI plugins: upgrade to 1.7.7 or later, or " +
			"use a base spec from rdma-spec generate instead of the plugin"},
		{"v2.1.5", true, "containerd v2.1.5 does not call NRI plugins to validate containers: upgrade to 2.2.0 or later"},
	} {
		p := unregistered(Options{Policy: mustPolicy(t, "{}"), Validate: test.validate})
		if _, err := p.Configure(t.Context(), "", "containerd", test.version); err == nil ||
			!strings.Contains(err.Error(), test.says) {
			t.Errorf("under %s: %v, want %s", test.version, err, test.says)
		}
	}
}

// A plugin stops within a second: at least one of three does, since a busy machine holds up everybody now and then.
func TestRun_StopsSoon(t *testing.T) {
	quickest := await.Timeout
	for range 3 {
		_, p := registered(t, Options{Policy: mustPolicy(t, "{}")})
		start := time.Now()
		p.stop()
		if err := await.Receive(t, await.Timeout, "stopped", p.ended); err != nil {
			t.Errorf("Run: %v", err)
		}
		quickest = min(quickest, time.Since(start))
		p.ended <- nil // for run, which waits as well
	}
	if quickest > time.Second {
		t.Errorf("the quickest of three stopped after %s, want a second at most", quickest)
	}
}

func quiet() *logrus.Logger {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return log
}

// unusedSpecs is a StoredSpecs that nobody asks.
type unusedSpecs struct{}

func (unusedSpecs) Confirm(context.Context, string, spec.Grant) (storedspec.Found, error) {
	panic("asked")
}

// What the runtime hands over holds, until it restarts and hands over something else, or until a file says otherwise. A
// bad one never replaces a good one; where there was none, RDMA containers are refused.
func TestConfigure_HandsOverConfiguration(t *testing.T) {
	p := unregistered(Options{})
	for i, step := range []struct {
		handed  string
		valid   float64
		memlock string // "": RDMA containers are refused
	}{{"", 1, "unlimited"}, {"memlok: 1Gi", 0, ""}, {"memlock: 1Gi", 1, "1Gi"}, {"memlok: 2Gi", 0, "1Gi"},
		{"memlock: 2Gi", 1, "2Gi"}, {"memlock: 4Gi", 1, "3Gi"}} {
		if i == 5 {
			p.Use(mustPolicy(t, "memlock: 3Gi"), "a file", nil)
		}
		if _, err := p.Configure(t.Context(), step.handed, "containerd", "v2.4.2"); err != nil {
			t.Fatal(err)
		}
		memlock := p.memlockInForce()
		if p.policy().Missing() != nil {
			memlock = ""
		}
		if valid := testutil.ToFloat64(p.metrics.configValid); valid != step.valid || memlock != step.memlock {
			t.Errorf("%q: the metric says %v, want %v; memlock %q, want %q", step.handed, valid,
				step.valid, memlock, step.memlock)
		}
	}
	if testutil.ToFloat64(p.metrics.configLoaded) == 0 {
		t.Error("the metric does not say when the configuration was loaded")
	}
}

// The events depend on the runtime alone, so that no configuration needs another registration.
func TestConfigure_Events(t *testing.T) {
	var create, both, validate api.EventMask
	validate.Set(api.Event_VALIDATE_CONTAINER_ADJUSTMENT)
	create.Set(api.Event_CREATE_CONTAINER)
	both.Set(api.Event_CREATE_CONTAINER, api.Event_POST_CREATE_CONTAINER)
	for _, test := range []struct {
		name, runtime, policy string
		stored                StoredSpecs
		validate              bool
		want                  api.EventMask
	}{
		{name: "containerd", runtime: "containerd", policy: "{}", stored: unusedSpecs{}, want: both},
		{name: "a policy without IPC_LOCK", runtime: "containerd", policy: "ipcLock: false",
			stored: unusedSpecs{}, want: both},
		{name: "CRI-O", runtime: "cri-o", policy: "{}", stored: unusedSpecs{}, want: create},
		{name: "nothing that could edit", runtime: "containerd", policy: "{}", want: create},
		{name: "a validator", runtime: "containerd", policy: "{}", validate: true, want: validate},
	} {
		p := unregistered(Options{Policy: mustPolicy(t, test.policy), StoredSpecs: test.stored, Validate: test.validate})
		if got, err := p.Configure(t.Context(), "", test.runtime, "v2.4.2"); err != nil || got != test.want {
			t.Errorf("%s: %s, %v, want %s", test.name, got.PrettyString(), err, test.want.PrettyString())
		}
	}
}
