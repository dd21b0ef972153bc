// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package deploy_test

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/daemon"
)

var bin = flag.String("bin", "../bin", "folder of nri-rdma")

const (
	units      = "/run/units"
	pluginLog  = "/run/nri-rdma.log"
	registered = "msg=registered"

	// forTheNode lets the log be read without a journal. The node's CPU is emulated, hence the budget.
	forTheNode = "[Service]\nStandardError=append:" + pluginLog + "\nExecStart=\nExecStart=/usr/local/bin/nri-rdma --budget 1500ms\n"
)

// TestNodeService runs the service as installed, under a real systemd inside the node, and sees that the hardening leaves it all
// that it needs: it is root without capabilities, registers, injects devices, reaches containerd, survives its own death and the
// runtime's.
func TestNodeService(t *testing.T) {
	if os.Getenv("RDMA_NODE") == "" {
		t.Fatal("this test runs inside the RDMA node: call `make e2e`")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	ctrd, err := containerd.Start(ctx, containerd.Options{Version: "2.4.2", Runtime: "runc"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ctrd.Stop)
	write(t, "/etc/rdma-spec/config.yaml", "optIn: {annotation: {namespaces: [ml]}}\n", 0o644)
	systemd := startSystemd(t)
	awaitRegistrations(ctx, t, systemd, 1)

	first := processes(t, "nri-rdma")[0]
	wantNoPrivileges(t, first)
	if got := manage(t, "show", "--property=ActiveState,StatusText", "nri-rdma"); !strings.Contains(got, "ActiveState=active") || !strings.Contains(got, "StatusText=") {
		t.Errorf("systemd does not know that the service is ready:\n%s", got)
	}
	wantRDMA(ctx, t, ctrd)

	manage(t, "reload", "nri-rdma")
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	awaitRegistrations(ctx, t, systemd, 2)
	if err := ctrd.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	awaitRegistrations(ctx, t, systemd, 3)
	wantRDMA(ctx, t, ctrd)
}

// startSystemd installs the service and starts a systemd with it and little else, in a PID namespace of its own.
func startSystemd(t *testing.T) *daemon.Process {
	t.Helper()
	program, err := os.ReadFile(filepath.Join(*bin, "nri-rdma"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, "/usr/local/bin/nri-rdma", string(program), 0o755)
	write(t, units+"/nri-rdma.service", read(t, "systemd/nri-rdma.service"), 0o644)
	write(t, units+"/nri-rdma.service.d/node.conf", forTheNode, 0o644)
	for _, target := range []string{"sysinit", "basic", "multi-user", "shutdown"} {
		write(t, units+"/"+target+".target", "[Unit]\nDefaultDependencies=no\n", 0o644)
	}
	generators, err := os.ReadDir("/lib/systemd/system-generators")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll("/run/systemd/system-generators", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, g := range generators { // they would make units of the node's mounts
		if err := os.Symlink(os.DevNull, filepath.Join("/run/systemd/system-generators", g.Name())); err != nil {
			t.Fatal(err)
		}
	}
	systemd, err := daemon.Start([]string{"container=other", "SYSTEMD_UNIT_PATH=" + units},
		"unshare", "--fork", "--kill-child", "--pid", "--mount", "--mount-proc", "--cgroup",
		"/lib/systemd/systemd", "--system", "--unit=nri-rdma.service", "--log-target=kmsg", "--show-status=0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = systemd.Signal(syscall.SIGKILL) // what it started ends with its PID namespace
		<-systemd.Exited()
		if t.Failed() {
			kernelLog, _ := exec.Command("dmesg").Output() // what there is of it helps
			t.Logf("systemd:\n%s", strings.Join(regexp.MustCompile(`(?m)^.*(systemd|nri-rdma).*$`).FindAllString(string(kernelLog), -1), "\n"))
		}
	})
	return systemd
}

// awaitRegistrations waits until the plugin has registered that many times.
func awaitRegistrations(ctx context.Context, t *testing.T, systemd *daemon.Process, count int) {
	t.Helper()
	err := systemd.Await(ctx, "has the plugin registered", func() bool {
		log, err := os.ReadFile(pluginLog)
		return err == nil && strings.Count(string(log), registered) >= count
	})
	if err != nil {
		log, _ := os.ReadFile(pluginLog) // none is as good
		t.Fatalf("%v\nthe plugin:\n%s", err, log)
	}
}

// processes gives the PIDs of the processes of that name.
func processes(t *testing.T, name string) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, file := range files {
		comm, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(comm)) != name {
			continue // another, or gone
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	if len(pids) == 0 {
		t.Fatalf("no process is called %s", name)
	}
	return pids
}

// manage runs systemctl against the systemd inside the node, which answers only from its own PID namespace.
func manage(t *testing.T, args ...string) string {
	t.Helper()
	pid := strconv.Itoa(slices.Max(processes(t, "systemd")))
	out, err := exec.Command("nsenter", append([]string{"--target", pid, "--pid", "--mount", "systemctl"}, args...)...).CombinedOutput()
	if err != nil {
		t.Errorf("systemctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func wantNoPrivileges(t *testing.T, pid int) {
	t.Helper()
	status := read(t, filepath.Join("/proc", strconv.Itoa(pid), "status"))
	got := map[string]string{}
	for _, field := range regexp.MustCompile(`(?m)^(Cap\w+|NoNewPrivs|Seccomp):\t(.*)$`).FindAllStringSubmatch(status, -1) {
		got[field[1]] = field[2]
	}
	const none = "0000000000000000"
	want := map[string]string{
		"CapInh": none, "CapPrm": none, "CapEff": none, "CapBnd": none, "CapAmb": none, "NoNewPrivs": "1", "Seccomp": "2",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the plugin's process, -want +got:\n%s", diff)
	}
}

// wantRDMA creates a container that opts in, and wants it to have all three.
func wantRDMA(ctx context.Context, t *testing.T, ctrd *containerd.Containerd) {
	t.Helper()
	sandbox, err := ctrd.RunPod(ctx, containerd.Pod{Namespace: "ml", Annotations: map[string]string{"rdma.noderesource.dev": "true"}})
	if err != nil {
		t.Fatal(err)
	}
	id, err := sandbox.Run(ctx, containerd.Container{User: 1000})
	if err != nil {
		t.Fatal(err)
	}
	got, err := ctrd.Shell(ctx, id, `ulimit -l; echo $(ls /dev/infiniband); grep CapEff /proc/self/status`)
	if err != nil {
		t.Fatal(err)
	}
	want := "unlimited\nrdma_cm uverbs0 uverbs1\nCapEff:\t0000000000004000\n"
	if diff := cmp.Diff(want, got.Out); diff != "" {
		log, _ := os.ReadFile(pluginLog) // none is as good
		t.Errorf("in the container, -want +got:\n%s\nthe plugin:\n%s", diff, log)
	}
}
