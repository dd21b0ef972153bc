// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"context"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/crio"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// The tests of what the plugin grants and refuses pass on CRI-O without changes. Other tests cover what differs on
// CRI-O.
func TestCRIO(t *testing.T) {
	ctrd.Stop()
	t.Cleanup(func() {
		var err error
		if ctrd, err = containerd.Start(context.Background(), options()); err != nil {
			t.Fatal(err)
		}
	})
	started, err := crio.Start(within(t, 5*patience))
	if err != nil {
		t.Fatal(err)
	}
	crioInstead = started
	t.Cleanup(func() {
		crioInstead = nil
		started.Stop()
		if t.Failed() {
			t.Logf("CRI-O said:\n%s", started.Log())
		}
	})
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"DeviceSignal", TestDeviceSignal},
		{"AnnotationInjects", TestAnnotationInjects},
		{"NonRoot", TestNonRoot},
		{"NoGrant", TestNoGrant},
		{"Refusals", TestRefusals},
		{"PluginStopped", TestPluginStopped},
		{"Restart", testCRIORestart},
		{"Confirms", testCRIOConfirms},
		{"Validator", testCRIOValidator},
		{"Repair", testCRIORepair},
		{"RepairLoop", testCRIORepairLoop},
		{"Configure", testCRIOConfigure},
		{"Generate", testCRIOGenerate},
		{"IPCLock", testCRIOIPCLock},
		{"CDI", testCRIWithoutPlugin},
	} {
		t.Run(test.name, test.run)
	}
}

func restartCRIO(t *testing.T) {
	t.Helper()
	if err := crioInstead.Restart(within(t, 2*patience)); err != nil {
		t.Fatal(err)
	}
}

// dropIn adds a configuration file to CRI-O until the test ends.
func dropIn(t *testing.T, name, text string) {
	t.Helper()
	if err := crioInstead.DropIn(name, text); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := crioInstead.DropIn(name, ""); err != nil {
			t.Error(err)
		}
		if err := crioInstead.Restart(context.Background()); err != nil {
			t.Error(err)
		}
	})
	restartCRIO(t)
}

// After a restart of CRI-O, the plugin is registered again, and containers continue to run.
func testCRIORestart(t *testing.T) {
	plugin := startPlugin(t, "{}")
	pod := runPod(t, containerd.Pod{})
	before := runContainer(t, pod, containerd.Container{Name: "before", Devices: containerd.Verbs(0)})
	first := pid(t, before)
	restartCRIO(t)
	awaitRegistrations(t, plugin, 2)
	after := runContainer(t, pod, containerd.Container{Name: "after", Devices: containerd.Verbs(0)})
	expectMemlock(t, after, "unlimited")
	expectMemlock(t, before, "unlimited")
	if again := pid(t, before); again != first {
		t.Errorf("the container's process was %d and is %d", first, again)
	}
}

// CRI-O stores no spec that the plugin can read, so the plugin reads what a container got from its first process.
func testCRIOConfirms(t *testing.T) {
	plugin := startPlugin(t, "{}", "--http", metricsAddress)
	id := runContainer(t, runPod(t, containerd.Pod{}), containerd.Container{Name: "confirmed", Devices: containerd.Verbs(0)})
	expectMemlock(t, id, "unlimited")
	if line := lineAbout(plugin.Log(), "confirmed"); !strings.Contains(line, "msg=adjusted") {
		t.Errorf("the log says %q, want that the container is adjusted", line)
	}
	expectMetric(t, `nri_rdma_grants_total{result="confirmed"} 1`)
}

// This CRI-O has the version number of one that supports validators, but does not support them, because it was built
// from an earlier commit. The validator reports that, and nothing changes.
func testCRIOValidator(t *testing.T) {
	validator := startValidator(t)
	const says = "The runtime might also lack an event that the plugin needs, even if its version normally has the " +
		"event. In that case, upgrade the runtime"
	awaitLog(t, validator, says)
	id := runContainer(t, runPod(t, containerd.Pod{}), containerd.Container{Devices: containerd.Verbs(0)})
	expectMemlock(t, id, kernelDefault)
	if got := strings.Count(validator.Log(), "msg=registering"); got != 2 {
		t.Errorf("the validator has tried %d times, want twice, and minutes later again", got)
	}
}

// repair finds and raises containers that were created without the plugin, and reports that CRI-O gives the old limit
// to later execs.
func testCRIORepair(t *testing.T) {
	id := runContainer(t, runPod(t, containerd.Pod{Name: "broken"}), containerd.Container{
		Devices: containerd.Verbs(0), Mounts: []containerd.Mount{register(t)}, Args: []string{"/register", "rxe0", "/result"},
	})
	awaitResult(t, id, "1 refused: Cannot allocate memory")
	expectTool(t, 1, "  below  memlock is 8Mi, but the policy grants unlimited (fix: recreate the pod)", "status")
	stdout, stderr, status := tool(t, "repair")
	if want := "default/broken main: memlock raised to unlimited: 1 process\n"; status != 0 || stdout != want {
		t.Errorf("rdma-spec repair: exit status %d, want 0, and %q, want %q", status, stdout, want)
	}
	if want := "default/broken main: cri-o has no stored spec that can be changed, so new processes " +
		"started with exec get the old limit until the pod is recreated"; !strings.Contains(stderr, want) {
		t.Errorf("rdma-spec repair says %q, want %q", stderr, want)
	}
	awaitResult(t, id, "1 refused: Cannot allocate memory\n1 registered")
	expectMemlock(t, id, "unlimited")
	if got := shell(t, id, "ulimit -l"); got != "8192" {
		t.Errorf("in an exec, ulimit -l says %s, and we say that it keeps 8192", got)
	}
	expectTool(t, 0, "nothing to raise: checked 1 RDMA container\n", "repair")
}

// When the plugin registers, it counts the containers that were created without it. repair --every raises only these,
// and reports the limit of later execs.
func testCRIORepairLoop(t *testing.T) {
	pod := runPod(t, containerd.Pod{Name: "earlier"})
	id := runContainer(t, pod, containerd.Container{Name: "main", Devices: containerd.Verbs(0)})
	unrelated := runContainer(t, pod, containerd.Container{Name: "unrelated"})
	expectMemlock(t, id, kernelDefault)
	plugin := startPlugin(t, "{}")
	awaitLog(t, plugin, "a lower memlock than the current policy grants")
	loop := startRepair(t)
	awaitLog(t, loop, "default/earlier main: memlock raised to unlimited: 1 process")
	awaitLog(t, loop, "cri-o has no stored spec that can be changed")
	expectMemlock(t, id, "unlimited")
	expectMemlock(t, unrelated, kernelDefault)
}

// CRI-O reads the generated drop-in, but not the backup of the file that it replaced. Every container then has the
// limit, without the plugin.
func testCRIOGenerate(t *testing.T) {
	const name = "90-rdma-spec.conf"
	file := filepath.Join(crio.DropIns, name)
	rdmaSpec(t, "generate", "--for", "crio", "--memlock", "1Gi", "--to", file)
	rdmaSpec(t, "generate", "--for", "crio", "--to", file)
	dropIn(t, name, scratch.Read(t, file))
	id := runContainer(t, runPod(t, containerd.Pod{}), containerd.Container{User: 1000})
	expectMemlock(t, id, "unlimited")
	if got := shell(t, id, "ulimit -l; ulimit -Hl"); got != "unlimited\nunlimited" {
		t.Errorf("in an exec, ulimit -l says %q, want unlimited, soft and hard", got)
	}
}

var crioLine = regexp.MustCompile(`crio\.runtime\.default_capabilities = \[[^]]*\]`)

// The plugin cannot grant IPC_LOCK on CRI-O, and logs the configuration line that can. With this line, root has the
// capability, with or without a device.
func testCRIOIPCLock(t *testing.T) {
	plugin := startPlugin(t, "{}")
	pod := runPod(t, containerd.Pod{})
	id := runContainer(t, pod, containerd.Container{Name: "before", Devices: containerd.Verbs(0)})
	expectMemlock(t, id, "unlimited")
	expectCapabilities(t, id, "")
	line := crioLine.FindString(plugin.Log())
	if line == "" {
		t.Fatal("the log has no line for crio.conf.d")
	}
	asked := runContainer(t, pod, containerd.Container{Name: "asked", Devices: containerd.Verbs(0),
		AddCaps: []string{"IPC_LOCK"}})
	expectCapabilities(t, asked, "CapPrm CapEff CapBnd")
	dropIn(t, "91-rdma-ipc-lock.conf", line+"\n")
	awaitRegistrations(t, plugin, 2)
	for name, test := range map[string]struct {
		user int64
		want string
	}{
		"root":     {want: "CapPrm CapEff CapBnd"},
		"uid-1000": {user: 1000, want: "CapBnd"},
	} {
		id := runContainer(t, pod, containerd.Container{Name: name, Devices: containerd.Verbs(0), User: test.user})
		expectCapabilities(t, id, test.want)
		expectMemlock(t, id, "unlimited")
	}
}

// configure turns NRI on in a CRI-O that has it off, and --revert restores CRI-O's files.
func testCRIOConfigure(t *testing.T) {
	dropIn(t, "10-off.conf", "[crio.nri]\nenable_nri = false\n")
	if connection, err := net.Dial("unix", crio.NRISocket); err == nil {
		_ = connection.Close() // nothing was sent
		t.Fatal("NRI serves although it is off")
	}
	files := func() map[string]string { return filesIn(t, filepath.Dir(crio.DropIns)) }
	before := files()
	succeed(t, "configure", "nri", "--runtime", "crio")
	restartCRIO(t)
	startPlugin(t, "{}")
	id := runContainer(t, runPod(t, containerd.Pod{}), containerd.Container{Devices: containerd.Verbs(0)})
	expectMemlock(t, id, "unlimited")
	succeed(t, "configure", "nri", "--revert")
	expectFiles(t, before, files())
}
