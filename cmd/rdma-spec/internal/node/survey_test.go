// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/agents"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
)

// Where HCAs belong to one network namespace, only a container of the host's network can open them.
func TestSurveyKnowsTheNetwork(t *testing.T) {
	files := hcatest.V100Node().Files()
	files["sys/module/ib_core/parameters/netns_mode"] = "N\n"
	for pid, network := range map[string]string{"1": "net:[1]", "20": "net:[1]", "30": "net:[2]"} {
		files["proc/"+pid+"/ns/net"] = hcatest.Link(network)
	}
	s := idle(t, files.Root(t)).surveyor(policyOf(t, "inject: {namespaces: [ml]}"))
	asking := policy.Container{Namespace: "ml", Pod: "asks", Name: "main",
		Annotations: map[string]string{"rdma.noderesource.dev": "true"}}
	for pid, injected := range map[int]bool{20: true, 30: false} {
		asking.HostNetwork = injected // Listing reads it
		r, _ := s.look(Listed{Container: cri.Container{Container: asking, PID: pid}})
		if (r.State == StateRefused) == injected || injected && len(r.Wanted.Devices) == 0 {
			t.Errorf("process %d: %s, %q: injected should be %t", pid, r.State, r.Problems, injected)
		}
	}
}

// A survey reads an HCA only to inject it, and then as its caller reads HCAs.
func TestSurveyReadsNoHCA(t *testing.T) {
	root := hcatest.V100(t)
	hcatest.Block(t, root, "sys/devices/pci0000:5e/0000:5e:00.0/infiniband/mlx5_0/ports/1/state")
	p := policyOf(t, "inject: {namespaces: [listed]}")
	read := 0
	all := idle(t, root)
	all.HCAs = func() (*hca.Inventory, error) { read++; return nil, errors.New("mlx5_0 does not answer") }
	s := all.surveyor(p)
	looked := make(chan Container, 1)
	look := func(c policy.Container) Container {
		go func() { r, _ := s.look(Listed{Container: cri.Container{Container: c}}); looked <- r }()
		return await.Receive(t, 5*time.Second, "looked at "+c.Pod, looked)
	}
	holds := look(holdsVerbs(hcatest.FirstVerbs))
	if !slices.Equal(holds.HCAs, []string{"mlx5_0"}) || read != 0 {
		t.Errorf("it has the HCAs %q, which were read %d times", holds.HCAs, read)
	}
	asks := look(policy.Container{Namespace: "listed", Pod: "asks", Name: "main",
		Annotations: map[string]string{"rdma.noderesource.dev": "true"}})
	if asks.State != StateRefused || !strings.Contains(asks.Problems[0], "mlx5_0 does not answer") || read != 1 {
		t.Errorf("%s: %q, and the HCAs were read %d times", asks.State, asks.Problems, read)
	}
}

// What a new container would lack as well is not advised.
func TestSurvey_adviceOnIPCLock(t *testing.T) {
	id := strings.Repeat("1", 64)
	root := hcatest.V100Node().Files().With(hcatest.Files{
		"proc/1/cgroup":  "0::/kubepods/" + id + "\n",
		"proc/1/limits":  "Max locked memory         unlimited unlimited bytes     \n",
		"proc/1/status":  "Name:\tmain\nCapEff:\t00000000a80425fb\n",
		"proc/1/uid_map": "         0          0 4294967295\n",
	}).Root(t)
	usual := []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID",
		"CAP_SETUID"}
	const changed = "the program lacks CAP_IPC_LOCK, although the container has it: the program switched to another " +
		"user, or started before the container got the capability (if so, recreate the pod)"
	for name, test := range map[string]struct {
		runtime  string
		bounding []string
		want     string
	}{
		"created without the plugin": {"containerd", usual, "the container lacks CAP_IPC_LOCK: to add the capability, recreate the pod"},
		"CRI-O": {"cri-o", usual,
			"the container lacks CAP_IPC_LOCK: on cri-o, add the capability in the pod's spec or in the runtime's configuration"},
		"the entrypoint changes the user":             {"containerd", append(slices.Clone(usual), spec.CapIPCLock), changed},
		"CRI-O, and the entrypoint changes the user":  {"cri-o", append(slices.Clone(usual), spec.CapIPCLock), changed},
		"its author dropped all capabilities":         {"containerd", nil, ""},
		"its author dropped all but what is IPC_LOCK": {"containerd", []string{spec.CapIPCLock}, changed},
	} {
		s := snapshot(t, Options{Root: root}).surveyor(everything(t))
		c := Listed{Container: cri.Container{
			Container: holdsVerbs(hcatest.FirstVerbs), Runtime: cri.Identity{Name: test.runtime}, ID: id, PID: 1,
			Spec: cri.Spec{Bounding: test.bounding},
		}}
		r, isRDMA := s.look(c)
		all := []Container{r}
		s.judge(t.Context(), all)
		if !isRDMA || strings.Join(all[0].Notes, "; ") != test.want || all[0].State != StateOK {
			t.Errorf("%s: %s, %q, want %q", name, all[0].State, all[0].Notes, test.want)
		}
	}
}

// The process with a verbs device open that can register the least counts, and IPC_LOCK in the first user namespace.
func TestSurveyKnowsWhatTheKernelAllows(t *testing.T) {
	id := strings.Repeat("1", 64)
	const limits, all, none, open = "Max locked memory  %s  unlimited  bytes\nMax open files  1024  4096  files\n",
		"0000000000004000", "0000000000000000", "../../../dev/infiniband/uverbs0"
	type p struct{ soft, effective, users, file string }
	for name, test := range map[string]struct {
		processes []p
		want      spec.Limit
	}{
		"the first process":                          {[]p{{"8388608", none, "", ""}}, 8 << 20},
		"with IPC_LOCK":                              {[]p{{"8388608", all, "user:[4026531837]", ""}}, spec.Unlimited},
		"with IPC_LOCK in a user namespace":          {[]p{{"8388608", all, "user:[4026532999]", ""}}, 8 << 20},
		"a shell beside a trainer that is unlimited": {[]p{{"65536", none, "", ""}, {"unlimited", none, "", open}}, spec.Unlimited},
		"a trainer that has less than its parent":    {[]p{{"unlimited", all, "", ""}, {"65536", none, "", open}}, 64 << 10},
		"the worst of several":                       {[]p{{"unlimited", none, "", open}, {"16777216", none, "", open}}, 16 << 20},
		"an exec with less that uses no RDMA":        {[]p{{"unlimited", none, "", ""}, {"65536", none, "", "/dev/null"}}, spec.Unlimited},
	} {
		files := hcatest.V100Node().Files()
		for i, process := range test.processes {
			at := fmt.Sprintf("proc/%d/", i+1)
			files[at+"cgroup"], files[at+"status"] = "0::/kubepods/"+id+"\n", "Name:\ta\nCapEff:\t"+process.effective+"\n"
			files[at+"limits"], files[at+"uid_map"] = fmt.Sprintf(limits, process.soft), "0 0 4294967295\n"
			if process.users != "" {
				files[at+"ns/user"] = hcatest.Link(process.users)
			}
			if process.file != "" {
				files[at+"fd/7"] = hcatest.Link(process.file)
			}
		}
		s := snapshot(t, Options{Root: files.Root(t)}).surveyor(everything(t))
		r, _ := s.look(Listed{Container: cri.Container{Container: holdsVerbs(hcatest.FirstVerbs), ID: id, PID: 1}})
		if r.Registers == nil || *r.Registers != test.want || r.RegistersBytes != uint64(test.want) ||
			r.OpenFiles.Hard != 4096 {
			t.Errorf("%s: %v, %+v, want %s", name, r.Registers, r.OpenFiles, test.want)
		}
	}
}

// Of a container that is no RDMA container, a process that has an HCA open is judged all the same, and an idle one of an
// RDMA container is known where none has.
func TestSurveyJudgesWhoHasAnHCAOpen(t *testing.T) {
	id := strings.Repeat("1", 64)
	privileged := policy.Container{Namespace: "slurm", Pod: "slurmd", Name: "slurmd", AllDevices: true}
	for name, test := range map[string]struct {
		container   policy.Container
		resource    string
		open        bool
		uses        bool
		least, idle int
	}{
		"privileged, with a job that has an HCA open":     {privileged, "", true, true, 2, 0},
		"privileged, with a resource and a job without":   {privileged, "rdma/hca", false, true, 1, 2},
		"privileged, and nothing tells that it uses RDMA": {privileged, "nvidia.com/gpu", false, false, 1, 2},
		"an RDMA container with a job that is idle":       {holdsVerbs(hcatest.FirstVerbs), "", false, false, 1, 2},
	} {
		files := hcatest.V100Node().Files()
		for i, soft := range []string{"unlimited", "8388608"} {
			at := fmt.Sprintf("proc/%d/", i+1)
			files.With(hcatest.Files{at + "cgroup": "0::/kubepods/" + id + "\n", at + "uid_map": "0 0 4294967295\n",
				at + "status": fmt.Sprintf("Name:\ta\nUid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d\nCapEff:\t0000000000000000\n", 1000*i),
				at + "limits": fmt.Sprintf("Max locked memory  %[1]s  %[1]s  bytes\nMax open files  1024  4096  files\n", soft)})
		}
		if test.open {
			files["proc/2/fd/7"] = hcatest.Link("../../../dev/infiniband/uverbs1")
		}
		s := snapshot(t, Options{Root: files.Root(t)}).surveyor(everything(t))
		l := Listed{Container: cri.Container{Container: test.container, ID: id, PID: 1},
			Resources: &Resources{Names: []string{test.resource}, Known: true}}
		r, isRDMA := s.look(l)
		if !isRDMA {
			s.surveyOther(&r, l)
		}
		if r.Uses != test.uses || len(r.Given) > 0 || (test.uses || isRDMA) && (r.Least.PID != test.least || r.Idle.PID != test.idle) ||
			test.open && (r.Least.User != 1000 || !slices.Equal(r.Opened, []string{"uverbs1"})) {
			t.Errorf("%s: uses RDMA: %t, given %q, opened %q, least %+v, idle %+v", name, r.Uses, r.Given, r.Opened, r.Least, r.Idle)
		}
	}
}

func everything(t *testing.T) *policy.Policy { return policyOf(t, "{}") }

// policyOf is a policy by its configuration.
func policyOf(t *testing.T, config string) *policy.Policy {
	t.Helper()
	p, err := policy.FromText([]byte(config))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// holdsVerbs is a container with /dev/infiniband/uverbs0, which has a number.
func holdsVerbs(minor int64) policy.Container {
	return policy.Container{Namespace: "ml", Pod: "a", Name: "main",
		Devices: []policy.Device{{Path: "/dev/infiniband/uverbs0", Type: "c", Major: hcatest.Major, Minor: minor}}}
}

// A verbs device that has a number of no HCA, or of another one, is that of an HCA that was made anew.
func TestSurveyKnowsStaleDevices(t *testing.T) {
	s := idle(t, hcatest.V100(t)).surveyor(everything(t))
	for minor, want := range map[int64]string{
		hcatest.FirstVerbs:      "",
		hcatest.FirstVerbs + 1:  "/dev/infiniband/uverbs0 has the device number 231:193, which now belongs to uverbs1 of HCA mlx5_1",
		hcatest.FirstVerbs + 40: "/dev/infiniband/uverbs0 has the device number 231:232, which no longer belongs to an HCA",
	} {
		r, isRDMA := s.look(Listed{Container: cri.Container{Container: holdsVerbs(minor)}})
		if strings.Join(r.Stale, "; ") != want || isRDMA != (minor < hcatest.FirstVerbs+2) {
			t.Errorf("%d: %q, an RDMA container: %t, want %q", minor, r.Stale, isRDMA, want)
		}
	}
}

// What the kubelet gave a container that holds no HCA is told. An HCA of a virtual machine is no verbs device.
func TestSurveyKnowsWhatWasGiven(t *testing.T) {
	s := idle(t, hcatest.V100(t)).surveyor(everything(t))
	s.kubelet = func() (agents.Kubelet, error) {
		return agents.Kubelet{Given: map[string][]string{"ml/a/main": {"nvidia.com/hostdev"}}}, nil
	}
	of := func(pod string, devices ...policy.Device) Listed {
		return Listed{Container: cri.Container{Container: policy.Container{Namespace: "ml", Pod: pod, Name: "main",
			Devices: devices}}}
	}
	collected := of("c")
	collected.Resources = &Resources{Names: []string{"nvidia.com/gpu", "rdma/hca"}, Known: true}
	for want, l := range map[string]Listed{"nvidia.com/hostdev": of("a"), "": of("b"), "rdma/hca": collected,
		" ": of("a", policy.Device{Path: "/dev/vfio/12", Type: "c", Major: 510})} {
		var r Container
		if s.surveyOther(&r, l); strings.Join(r.Given, " ") != strings.TrimSpace(want) {
			t.Errorf("%s: %q, want %q", l.Pod, r.Given, want)
		}
	}
}

// A function is known by the ID that the kubelet gave, whatever its resource is called; where the ID is not known, DPDK's
// huge pages tell that an HCA may be meant (k8snetworkplumbingwg/sriov-network-device-plugin#123).
func TestSurveyKnowsFunctionsWithoutVerbs(t *testing.T) {
	s := idle(t, hcatest.V100(t)).surveyor(everything(t))
	const hca, other = "0000:5e:00.0", "0000:5f:02.1"
	for name, test := range map[string]struct {
		resource, function string
		hugePages          bool
		devices            []policy.Device
		functions, given   string
	}{
		"a function with an HCA":      {"mellanox.com/sriov", hca, false, nil, "PCI function 0000:5e:00.0 (mellanox.com/sriov), HCA mlx5_0", ""},
		"a function without an HCA":   {"intel.com/sriov", other, true, nil, "", ""},
		"huge pages, and no ID":       {"mellanox.com/sriov", "", true, nil, "", "mellanox.com/sriov"},
		"huge pages, and a GPU":       {"nvidia.com/gpu", "", true, nil, "", ""},
		"no huge pages, and no ID":    {"mellanox.com/sriov", "", false, nil, "", ""},
		"a virtual machine's":         {"mellanox.com/sriov", hca, true, []policy.Device{{Path: "/dev/vfio/12", Type: "c"}}, "", ""},
		"a function of its HCA, held": {"mellanox.com/sriov", hca, true, holdsVerbs(hcatest.FirstVerbs).Devices, "", ""},
	} {
		l := Listed{Container: cri.Container{Container: policy.Container{Namespace: "ml", Pod: "a", Name: "main",
			Devices: test.devices}}, Inside: &process.Inside{HugePages: test.hugePages},
			Resources: &Resources{Names: []string{test.resource}, Known: true}}
		if test.function != "" {
			l.Resources.Functions = []agents.Function{{Resource: test.resource, PCI: test.function}}
		}
		r, isRDMA := s.look(l)
		if !isRDMA {
			s.surveyOther(&r, l)
		}
		if strings.Join(r.Functions, "; ") != test.functions || strings.Join(r.Given, " ") != test.given {
			t.Errorf("%s: functions %q, given %q", name, r.Functions, r.Given)
		}
	}
}

// A memory limit above the node's memory counts as the node's memory, for status and repair as for the plugin.
func TestSurvey_memoryOfNode(t *testing.T) {
	s := idle(t, hcatest.V100(t)).surveyor(policyOf(t, "memlock: memory-limit"))
	limited := holdsVerbs(hcatest.FirstVerbs)
	limited.MemoryLimit = 1 << 50
	r, ok := s.look(Listed{Container: cri.Container{Container: limited}})
	if want := spec.Limit(policy.LiveMemory()); !ok || r.Wanted.Memlock != want {
		t.Errorf("an RDMA container: %t, which gets %s, want %s", ok, r.Wanted.Memlock, want)
	}
}

// Where a runtime may not raise its own hard limit, the plugin gives no more, so a container that has it lacks nothing.
func TestSurvey_hardLimitOfRuntime(t *testing.T) {
	const socket = "/run/containerd/containerd.sock"
	most := spec.Limit(1 << 30)
	for name, test := range map[string]struct {
		runtimes []runtime.Runtime
		want     spec.Limit
	}{
		"none is known":           {nil, spec.Unlimited},
		"it may raise all limits": {[]runtime.Runtime{{Socket: socket}}, spec.Unlimited},
		"its own hard limit":      {[]runtime.Runtime{{Socket: socket, Startable: &most}}, most},
		"that of another runtime": {[]runtime.Runtime{{Socket: "/run/crio/crio.sock", Startable: &most}}, spec.Unlimited},
	} {
		s := idle(t, hcatest.V100(t))
		s.Runtimes = func() (runtime.Runtimes, error) { return runtime.Runtimes{Runtimes: test.runtimes}, nil }
		looking := s.surveyor(everything(t))
		r, ok := looking.look(Listed{Container: cri.Container{Container: holdsVerbs(hcatest.FirstVerbs),
			Runtime: cri.Identity{Socket: socket}}})
		cut := len(looking.result.Notes) > 0
		if !ok || r.Wanted.Memlock != test.want || cut != (test.want == most) {
			t.Errorf("%s: an RDMA container: %t, which gets %s, want %s; notes %q", name, ok, r.Wanted.Memlock, test.want,
				looking.result.Notes)
		}
	}
}

// The runtimes are not asked about a container that was started with all of it.
func TestSurvey_asksRuntimesIfNeeded(t *testing.T) {
	s := idle(t, hcatest.V100(t))
	asked := 0
	s.Runtimes = func() (runtime.Runtimes, error) { asked++; return runtime.Runtimes{}, nil }
	looking := s.surveyor(everything(t))
	for limit, want := range map[spec.Limit]int{spec.Unlimited: 0, 8 << 20: 1} {
		l := Listed{Container: cri.Container{Container: holdsVerbs(hcatest.FirstVerbs),
			Spec: cri.Spec{Memlock: spec.Rlimit{Soft: limit, Hard: limit}, MemlockKnown: true}}}
		asked = 0
		if r, ok := looking.look(l); !ok || r.Wanted.Memlock != spec.Unlimited || asked != want {
			t.Errorf("%s: an RDMA container: %t, which gets %s; the runtimes were asked %d times", limit, ok,
				r.Wanted.Memlock, asked)
		}
	}
}

func snapshot(t *testing.T, o Options) *Snapshot {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// idle is a node on which no process runs.
func idle(t *testing.T, root string) *Snapshot {
	t.Helper()
	return snapshot(t, Options{Root: root, Processes: limits.On(&limitstest.Kernel{})})
}

// What NVIDIA's container runtime adds after NRI is in no spec, and the process has it.
func TestSurveyFindsWhatCameAfterNRI(t *testing.T) {
	id := strings.Repeat("1", 64)
	root := hcatest.V100Node().Files().With(hcatest.Files{
		"proc/7/cgroup": "0::/kubepods/" + id + "\n",
		"proc/7/limits": "Max locked memory         8388608 8388608 bytes     \n",
	}).Root(t)
	verbs := []hca.Number{{Major: hcatest.MajorMisc, Minor: hcatest.MinorRDMACM},
		{Major: hcatest.Major, Minor: hcatest.FirstVerbs + 1}}
	added := process.Inside{Image: process.Image{Devices: verbs}}
	const listed = "optIn: {mofedRuntimeHandlers: [nvidia]}"
	for name, test := range map[string]struct {
		config string
		mofed  bool
		inside process.Inside
		change func(*policy.Container)
		state  State
		signal policy.Signal
		hcas   []string
	}{
		"unseen": {"{}", true, added, nil, StateUnseen, policy.SignalNone,
			[]string{"mlx5_1"}},
		"listed": {listed, true, added, nil, StateBelow,
			policy.SignalEnvironment, []string{"mlx5_1"}},
		"listed, without a device": {listed, true, process.Inside{}, nil, StateBelow, policy.SignalEnvironment, []string{}},
		"nothing was added":        {"{}", true, process.Inside{Image: process.Image{Devices: verbs[:1]}}, nil, "", "", nil},
		"the process is not seen":  {"{}", true, process.Inside{User: -1}, nil, "", "", nil},
		"no variable":              {"{}", false, added, nil, "", "", nil},
		"a hostPath": {"{}", true, process.Inside{HostPaths: []string{"/dev/infiniband"},
			Image: process.Image{Devices: verbs}}, nil, "", "", nil},
		"devices do not count": {"optIn: {devices: false}", true, added, nil, "", "", nil},
		"opted out": {"{}", true, added, func(c *policy.Container) {
			c.Annotations = map[string]string{policy.AnnotationKey: "false"}
		}, "", "", nil},
		"privileged": {"{}", true, added, func(c *policy.Container) { c.AllDevices = true }, "", "", nil},
		"beside a device plugin": {"{}", true, added, func(c *policy.Container) {
			c.Devices = []policy.Device{{Type: "c", Major: hcatest.Major, Minor: hcatest.FirstVerbs}}
		}, StateBelow, policy.SignalDevice, []string{"mlx5_0", "mlx5_1"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshot(t, Options{Root: root})
			c := policy.Container{Namespace: "ml", Pod: "train-0", Name: "main", RuntimeHandler: "nvidia", MOFED: test.mofed}
			if test.change != nil {
				test.change(&c)
			}
			s.Listing = func() (Listing, error) {
				return Listing{Containers: []Listed{{Container: cri.Container{Container: c, ID: id, PID: 7},
					Inside: &test.inside}}}, nil
			}
			got, err := s.survey(t.Context(), policyOf(t, test.config), JudgedBy{})
			if err != nil {
				t.Fatal(err)
			}
			if test.state == "" {
				if len(got.Containers) > 0 {
					t.Errorf("found %+v", got.Containers[0].Report)
				}
				return
			}
			if len(got.Containers) != 1 {
				t.Fatalf("found %d containers", len(got.Containers))
			}
			r := got.Containers[0]
			key := strings.Contains(r.Fix, `list the runtime handler "nvidia" in optIn.mofedRuntimeHandlers`)
			if r.State != test.state || r.Signal != test.signal || !slices.Equal(r.HCAs, test.hcas) ||
				key != (r.State == StateUnseen) || (r.Wanted == nil) != (r.State == StateUnseen) ||
				r.RDMA == (r.State == StateUnseen) || r.Memlock == nil || r.Memlock.Soft != 8<<20 {
				t.Errorf("found %+v, RDMA %t, want %s by %s with %v", r.Report, r.RDMA, test.state, test.signal, test.hcas)
			}
		})
	}
}

// A container whose author named its verbs device through another plugin is no RDMA container to the survey either.
func TestSurveyOfADeviceThatTheAuthorNames(t *testing.T) {
	s := idle(t, hcatest.V100(t)).surveyor(policyOf(t, "{}"))
	c := holdsVerbs(hcatest.FirstVerbs)
	c.Annotations = map[string]string{"devices.gke.io/pod": "- path: " + c.Devices[0].Path}
	noResources := &Resources{Known: true}
	if r, counts := s.look(Listed{Container: cri.Container{Container: c}, Resources: noResources}); counts || r.Signal != policy.SignalNone {
		t.Errorf("it counts as an RDMA container: %t, by %s", counts, r.Signal)
	}
	c.Annotations = map[string]string{"devices.gke.io/pod": "- path: /dev/nvidia0"}
	r, counts := s.look(Listed{Container: cri.Container{Container: c}, Resources: noResources})
	if !counts || r.Signal != policy.SignalDevice {
		t.Errorf("beside a GPU that he names, it counts: %t, by %s", counts, r.Signal)
	}
}
