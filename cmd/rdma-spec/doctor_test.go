// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri/critest"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/race"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

const port = "sys/devices/pci0000:5e/0000:5e:00.0/infiniband/mlx5_0/ports/1/"

// isDown is what the port has that is down, and has lost its link.
var isDown = hcatest.Files{port + "state": "1: DOWN\n", port + "phys_state": "2: Polling\n",
	port + "counters/link_downed": "2\n"}

// answers are those of daemons that have nothing to do with RDMA.
var answers = hcatest.Files{
	node.AnswersDir + "/runtimes.json":   `{"answer": {"runtimes": []}}`,
	node.AnswersDir + "/listing.json":    `{"answer": {"containers": []}}`,
	node.AnswersDir + "/kernel-log.json": `{"answer": {"lines": []}}`,
	node.AnswersDir + "/cdi.json":        `{"answer": {"files": []}}`,
	node.AnswersDir + "/plugin.json":     `{"answer": {}}`,
	node.AnswersDir + "/kubelet.json":    `{"answer": {}}`,
	node.AnswersDir + "/configured.json": `{"answer": {}}`,
	node.AnswersDir + "/rdma-cni.json":   `{"answer": {}}`,
	node.AnswersDir + "/policy.json":     `{"error": "no policy is in force"}`,
}

// doctorNode has two HCAs, one of whose ports has this state.
func doctorNode(t *testing.T, state string) string {
	t.Helper()
	files := hcatest.V100Node().Files().With(answers)
	if state == "1: DOWN" {
		return files.With(isDown).Root(t)
	}
	return files.With(hcatest.Files{port + "state": state + "\n"}).Root(t)
}

// What the doctor prints in each format, and its exit status.
func TestDoctor(t *testing.T) {
	silent := hcatest.V100Node().Files().With(answers).With(hcatest.Files{
		node.AnswersDir + "/runtimes.json": `{"error": "there is no answer about runtimes within 10s"}`,
		node.AnswersDir + "/listing.json":  `{"error": "there is no answer about listing within 10s"}`,
		node.AnswersDir + "/kubelet.json":  `{"error": "there is no answer about kubelet within 10s"}`,
	})
	down := hcatest.V100Node().Files().With(answers).With(isDown)
	nodes := map[string]string{
		"HEALTHY": doctorNode(t, "4: ACTIVE"), "DOWN": down.Root(t), "UNREAD": doctorNode(t, "garbage"),
		"SILENT": silent.Root(t), "DOWN-AND-SILENT": silent.With(isDown).Root(t),
		"TWO": down.With(hcatest.Files{
			"sys/module/ib_core/parameters/netns_mode": "Y\n",
			node.AnswersDir + "/rdma-cni.json":         `{"answer": {"configured": "/etc/cni/net.d/10-net.conf"}}`,
		}).Root(t),
		"WITHOUT-PLUGIN": hcatest.V100Node().Files().With(answers).With(hcatest.Files{
			node.AnswersDir + "/plugin.json": `{"answer": {"unit": true}}`}).Root(t),
		"IGNORING": ignoring(t, `[{"check": "port-*", "object": "HCA mlx5_0 *", "reason": "it is a spare"}]`),
	}
	compareCalls(t, "doctor", nodes, `
		doctor --root HEALTHY --only port-active
		# a fault comes first
		doctor --root DOWN --only hca-answers,port-active
		# what is unknown is no fault, and is not known where nothing else is looked at
		doctor --root UNREAD --only port-active
		doctor --root UNREAD --only port-active,hca-answers
		doctor --root SILENT --only kubelet-allocatable,hca-answers
		doctor --root DOWN-AND-SILENT --only port-active,kubelet-allocatable
		# a check that is named alone shows what it was skipped for
		doctor --root WITHOUT-PLUGIN --only plugin-current
		doctor --root /nowhere

		doctor -o npd --root HEALTHY
		doctor -o npd --root DOWN
		doctor -o npd --root TWO
		doctor -o npd --root UNREAD --only port-active
		doctor -o npd --root SILENT
		doctor -o npd --root DOWN-AND-SILENT
		doctor -o npd --root /nowhere
		doctor -o prometheus --root DOWN --only port-active,hca-answers
		doctor -o json --root DOWN --only port-active

		# what an administrator ignores never alarms
		doctor --root IGNORING --only port-active
		doctor -o npd --root IGNORING --only hca
		doctor -o prometheus --root IGNORING --only port-active
		doctor -o json --root IGNORING --only port-active`)
}

// TestDoctorExplains checks that --explain prints the page that findings link to, and looks at no node.
func TestDoctorExplains(t *testing.T) {
	got := call("", "doctor", "--explain", "port-active", "--root", "/nowhere")
	if want := "[Faults](../faults.md)\n\n" + got.Stdout; got.Status != 0 ||
		got.Stderr != "" || want != repository.Read(t, "docs/faults/port-active.md") {
		t.Errorf("doctor --explain: %+v", got)
	}
}

// Metrics can be read, and a check has its series whatever it finds.
func TestDoctorMetrics(t *testing.T) {
	for _, state := range []string{"4: ACTIVE", "1: DOWN", "garbage"} {
		got := words("doctor -o prometheus --root", doctorNode(t, state))
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(got.Stdout))
		if n := len(families["rdma_spec_doctor_findings"].GetMetric()); n != 3*len(checks()) || err != nil {
			t.Errorf("%s: %d series, %v", state, n, err)
		}
	}
}

func TestDoctorLists(t *testing.T) {
	got := words("doctor --list")
	if n := strings.Count(got.Stdout, "\n"); got.Status != 0 || n != len(checks())+1 ||
		!strings.Contains(got.Stdout, "\nport-active ") {
		t.Errorf("%+v", got)
	}
	if words := completions(t, "doctor", "--only", "hca-answers,port-a"); !strings.Contains(words,
		"hca-answers,port-active\t") || strings.Contains(words, "hca-answers,hca-answers") {
		t.Errorf("%q", words)
	}
}

// --to replaces a file at once, also where something is wrong, and writes nothing where it cannot look.
func TestDoctorOutput(t *testing.T) {
	file := filepath.Join(scratch.Folder(t), "rdma-spec.prom")
	for _, tc := range []struct {
		root   string
		status int
		want   string
	}{
		{doctorNode(t, "1: DOWN"), 1, `rdma_spec_doctor_findings{check="port-active",status="wrong"} 1`},
		{doctorNode(t, "4: ACTIVE"), 0, `rdma_spec_doctor_findings{check="port-active",status="wrong"} 0`},
		{"/nonexistent", 3, `rdma_spec_doctor_findings{check="port-active",status="wrong"} 0`},
	} {
		got := call("", "doctor", "--root", tc.root, "-o", "prometheus", "--only", "port-active", "--to", file)
		if got.Status != tc.status || got.Stdout != "" || !strings.Contains(scratch.Read(t, file), tc.want) {
			t.Errorf("%+v, want exit status %d, and in the file %s:\n%s", got, tc.status, tc.want, scratch.Read(t, file))
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("%v, %v, want mode 0644", info.Mode(), err)
	}
}

// The doctor finds in containers what status does, and what their processes see beside it.
func TestDoctorOfContainers(t *testing.T) {
	files, containers := mixedNode()
	user := holder(18, 1, "user")
	user.Spec.Process.Capabilities.Bounding = append(user.Spec.Process.Capabilities.Bounding, "CAP_IPC_LOCK")
	addProcess(files, 18, "8388608 8388608", plain)
	files["proc/18/status"] += "Uid:\t1000\t1000\t1000\t1000\n"
	mounted := other(19, "mounted")
	addProcess(files, 19, "8388608 8388608", plain)
	files["proc/19/mountinfo"] = "31 30 0:5 /infiniband /dev/infiniband ro - devtmpfs udev rw\n"
	names := map[string]string{"CONFIG": configFile(t, mixedConfig), "NODE": files.Root(t),
		"SOCKET": critest.Serve(t, critest.Options{}, append(containers, user, mounted)...).Socket,
		"CHECKS": "container-ipc-lock,container-memlock,container-refused,container-hca,container-hostpath"}
	compareCalls(t, "doctor-containers", names, `
		doctor --only CHECKS --config CONFIG --root NODE --runtime-endpoint SOCKET
		doctor --only CHECKS --root NODE --runtime-endpoint SOCKET`)
}

// ignoring is a node whose port mlx5_0 is down, and that has this file of what to ignore.
func ignoring(t *testing.T, file string) string {
	t.Helper()
	return hcatest.V100Node().Files().With(answers).With(isDown).With(hcatest.Files{
		node.AnswersDir + "/ignored.json": `{"answer": ` + file + `}`}).Root(t)
}

// One file of what to ignore serves a fleet: only --list names what matches nothing here.
func TestDoctorListsWhatMatchesNothing(t *testing.T) {
	root := ignoring(t, `[{"check": "gpu-*", "object": "GPU 0000:*", "reason": "elsewhere"}]`)
	got := call("", "doctor", "--root", root, "--list")
	if got.Status != 0 || !strings.HasPrefix(got.Stdout, "CHECK ") || got.Stderr != "rdma-spec: /etc/rdma-spec/doctor.yaml: "+
		`this entry matches nothing on this node: - {check: "gpu-*", object: "GPU 0000:*", reason: "elsewhere"}`+"\n" {
		t.Errorf("%+v", got)
	}
}

// The entry that a fault prints makes it ignored, whatever its object is called.
func TestDoctorPrintsTheEntry(t *testing.T) {
	root := hcatest.V100Node().Files().With(isDown)
	before := words("doctor --only port-active --root", root.Root(t))
	_, entry, found := strings.Cut(before.Stdout, "ignore: ")
	entry, _, _ = strings.Cut(entry, "\n")
	if before.Status != 1 || !found {
		t.Fatalf("%+v", before)
	}
	with := root.With(hcatest.Files{"etc/rdma-spec/doctor.yaml": "ignore:\n" + entry + "\n"})
	dir := with.Root(t)
	got := words("doctor --only port-active --root", dir)
	if got.Status != 0 || !strings.HasPrefix(got.Stdout, "ignored port-active: HCA mlx5_0 port 1: ") ||
		!strings.HasSuffix(got.Stdout, " (ignored: say why).\n") {
		t.Errorf("%+v", got)
	}
	// An archive has the entries as well.
	if there := words("doctor --only port-active --root", collected(t, dir)); !cmp.Equal(got, there) {
		t.Errorf("in an archive: %s", cmp.Diff(got, there))
	}
}

// A file that is not right is an error, in every format: nobody is to believe that something is ignored, or is not.
func TestDoctorStrictIgnoreFile(t *testing.T) {
	for file, want := range map[string]string{
		"ignores: []":                                      `unknown field "ignores"`,
		"ignore: [{check: a}]":                             "ignore[0]: check and reason must have a value",
		"ignore: [{object: a, reason: b}]":                 "ignore[0]: check and reason must have a value",
		"ignore: [{check: a, reason: b, objects: c}]":      `unknown field "ignore[0].objects"`,
		"ignore: [{check: '[a', reason: b}]":               `ignore[0]: check and object are globs: write \[ for a bracket`,
		"ignore: []\nignore: []":                           "already set",
		"ignore: []\n---\nignore: []":                      "something follows the end of the YAML document",
		"ignore:\n- {check: a, reason: b, object: [a, b]}": "ignore.object is of the type array",
	} {
		root := hcatest.V100Node().Files().With(hcatest.Files{"etc/rdma-spec/doctor.yaml": file}).Root(t)
		got := call("", "doctor", "--root", root, "--only", "hca")
		if got.Status != 3 || got.Stdout != "" || !strings.HasPrefix(got.Stderr, "rdma-spec: /etc/rdma-spec/doctor.yaml: ") ||
			!strings.Contains(got.Stderr, want) || strings.Count(got.Stderr, "\n") != 1 {
			t.Errorf("%s: %+v, want %s", file, got, want)
		}
	}
	for _, file := range []string{"", "# nothing\n", "ignore: []\n"} {
		root := hcatest.V100Node().Files().With(hcatest.Files{"etc/rdma-spec/doctor.yaml": file}).Root(t)
		if got := call("", "doctor", "--root", root, "--only", "hca-answers"); got.Status != 0 {
			t.Errorf("%q: %+v", file, got)
		}
	}
}

// busyNode is a node with eight HCAs and 200 containers, 80 of which hold an HCA, and each of which has a shim beside
// its process.
func busyNode() (files hcatest.Files, containers []critest.Container) {
	files = hcatest.EightHCANode().Files()
	mounts := "31 30 0:6 / /dev/shm rw,nosuid - tmpfs shm rw,size=65536k\n"
	for i := range 40 { // those that a runtime and a kubelet make
		mounts += fmt.Sprintf("%d 30 0:%d /var/lib/kubelet/pods/%064x/volumes /var/run/some/place/%d rw,nosuid,relatime - "+
			"tmpfs tmpfs rw,size=1024k\n", 40+i, i, i, i)
	}
	for n := 1; n <= 200; n++ {
		addProcess(files, n, "unlimited unlimited", ipcLocked)
		c := other(n, fmt.Sprintf("web-%d", n))
		if n <= 80 {
			c = holder(n, n%8, fmt.Sprintf("train-%d", n), memlockOf(math.MaxUint64))
		}
		containers = append(containers, large(c))
		for pid, program := range map[int]string{n: "/usr/bin/train", 1000 + n: "/usr/bin/containerd-shim-runc-v2"} {
			at := fmt.Sprintf("proc/%d/", pid)
			maps.Copy(files, hcatest.Files{
				at + "comm": "main\n", at + "exe": hcatest.Link(program), at + "cmdline": program + "\x00--flag\x00",
				at + "mountinfo":    mounts,
				at + "ns/net":       hcatest.Link(fmt.Sprintf("net:[%d]", pid)),
				at + "net/fib_trie": "Local:\n     |-- 10.0.0.9\n        /32 host LOCAL\n", at + "root/usr/lib/": "",
			})
		}
	}
	files["proc/1/ns/net"] = hcatest.Link("net:[1]")
	return files, containers
}

// costOf calls the program, and returns the CPU time and the memory that it needed.
func costOf(t *testing.T, args ...string) (stdout string, time time.Duration, memory int) {
	t.Helper()
	status := filepath.Join(scratch.Folder(t), "status")
	program := exec.Command(os.Args[0], args...)
	program.Env = append(os.Environ(), memoryInto+"="+status)
	out, _ := program.Output() // the exit status tells what was found
	_, most, _ := strings.Cut(scratch.Read(t, status), "\nVmHWM:")
	if _, err := fmt.Sscan(most, &memory); err != nil {
		t.Fatal(err)
	}
	return string(out), program.ProcessState.UserTime() + program.ProcessState.SystemTime(), memory << 10
}

// expectCheap checks the CPU time and the memory that calls need on a busy node: the most, or on a slow machine so many
// times what a call takes without containers.
func expectCheap(t *testing.T, most, times time.Duration, memory int, busy func() (time.Duration, int),
	idle func() time.Duration) {
	t.Helper()
	const tries = 20 // the machine may be busy with other tests
	least, alone, needed := time.Hour, time.Hour, math.MaxInt
	cheap := func() bool { return least <= max(most, times*alone) && needed <= memory }
	for try := 0; try < tries && !cheap(); try++ {
		took, used := busy()
		least, needed, alone = min(least, took), min(needed, used), min(alone, idle())
	}
	t.Logf("%s of CPU time, %d MB; without containers %s", least, needed/1e6, alone)
	if !cheap() {
		t.Errorf("%s of CPU time, %d MB; without containers %s", least, needed/1e6, alone)
	}
}

// The doctor needs less than 300 ms and 40 MB on a node with eight HCAs and 200 containers: in CPU time, since the
// machine has others to serve. On a machine so slow that a node without containers takes 40 ms and more, it may take
// eight times that.
func TestDoctorCosts(t *testing.T) {
	if race.Detector {
		t.Skip("the race detector takes its own time and memory")
	}
	files, containers := busyNode()
	root, policy := files.Root(t), configFile(t, "{}")
	busy, idle := critest.Serve(t, critest.Options{}, containers...), critest.Serve(t, critest.Options{})
	expectCheap(t, 300*time.Millisecond, 8, 40e6, func() (time.Duration, int) {
		stdout, took, needed := costOf(t, "doctor", "-o", "json", "--timeout", "1m", "--config", policy, "--root", root,
			"--runtime-endpoint", busy.Socket)
		if strings.Count(stdout, "container ml/") < 80 {
			t.Fatal(stdout)
		}
		return took, needed
	}, func() time.Duration {
		_, took, _ := costOf(t, "doctor", "--config", policy, "--root", root, "--runtime-endpoint", idle.Socket)
		return took
	})
}
