// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

// Package systemd_test runs the services and the package on the node, under a systemd.
package systemd_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/systemd"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

var bin = flag.String("bin", "../../bin", "directory of nri-rdma")

const (
	units     = systemd.Units
	pluginLog = "/run/nri-rdma.log"
	// validatorLog is the validator's.
	validatorLog = "/run/nri-rdma-validator.log"
	config       = "/etc/rdma-spec/config.yaml"

	// forTheNode lets the log be read without a journal. The node's CPU is emulated, hence the budget.
	forTheNode = "[Service]\nStandardError=append:" + pluginLog +
		"\nExecStart=\nExecStart=/usr/local/bin/nri-rdma --budget 1500ms\n"
)

// TestNodeService runs the service as installed, under a real systemd inside the node, and sees that the hardening
// leaves it all that it needs: it is root without capabilities, registers, injects devices, reaches containerd, sees
// the limits of containers, survives its own death and the runtime's, and the tool's unit raises limits.
func TestNodeService(t *testing.T) { besideSystemd(t, installService, testService) }

// besideSystemd carries a test out beside a systemd that reads the units of directories.
func besideSystemd(t *testing.T, install, do func(t *testing.T), dirs ...string) {
	t.Helper()
	if systemd.Beside(t, install, append([]string{units}, dirs...), "-bin", *bin, "-upgrades", strconv.Itoa(*upgrades)) {
		do(t)
	}
}

func testService(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute) // an emulated CPU on a busy host
	defer cancel()
	ctrd, err := containerd.Start(ctx, containerd.Options{Version: "2.4.2", Runtime: "runc"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ctrd.Stop)
	scratch.File(t, config, "inject: {namespaces: [ml]}\n", 0o644)
	older := lowContainer(ctx, t, ctrd)

	systemd.Manage(t, "start", "nri-rdma")
	wantNoPrivileges(t, awaitRegistered(t, 0))
	if got := systemd.Manage(t, "show", "--property=ActiveState", "nri-rdma"); got != "ActiveState=active\n" {
		t.Errorf("systemd does not know that the service is ready:\n%s", got)
	}
	wantRDMA(ctx, t, ctrd)
	awaitLog(t, pluginLog, "a lower memlock than the current policy grants", 1)
	testDoctorService(t)

	systemd.Manage(t, "reload", "nri-rdma")
	testDeath(t)
	registered := strings.Count(scratch.Read(t, pluginLog), "msg=registered")
	if err := ctrd.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	awaitLog(t, pluginLog, "msg=registered", registered+1)
	wantRDMA(ctx, t, ctrd)
	testOrder(t)
	testRuntimeDirectory(t)

	systemd.Manage(t, "start", "nri-rdma") // its policy is the one that counts
	awaitRegistered(t, 0)
	systemd.Manage(t, "start", "rdma-spec-repair")
	limits := func() string { return scratch.Read(t, fmt.Sprintf("/proc/%d/limits", older)) }
	await.That(t, await.Timeout, "the container that was there before the plugin is raised",
		func() bool { return unlimited.MatchString(limits()) })
	systemd.Manage(t, "stop", "rdma-spec-repair")
	testValidatorService(ctx, t, ctrd)
	systemd.Manage(t, "stop", "nri-rdma", "nri-rdma-validator")
}

// doctorFile is where the doctor's service writes.
const doctorFile = "/var/lib/prometheus/node-exporter/rdma-spec.prom"

// doctorOnTheNode is the service's call with the patience that an emulated CPU needs.
var doctorOnTheNode = []string{"doctor", "-o", "prometheus", "--timeout", "1m"}

// testDoctorService sees that the doctor's service finds what the doctor finds without hardening, and replaces its
// file.
func testDoctorService(t *testing.T) {
	t.Helper()
	dir := filepath.Dir(doctorFile)
	scratch.File(t, doctorFile, "of an earlier run\n", 0o644)
	if err := os.Chown(dir, 1, 1); err != nil { // it belongs to node_exporter
		t.Fatal(err)
	}
	systemd.Manage(t, "start", "rdma-spec-doctor")
	free, err := exec.Command("/usr/local/bin/rdma-spec", doctorOnTheNode...).Output()
	if diff := cmp.Diff(string(free), scratch.Read(t, doctorFile)); diff != "" || len(free) == 0 {
		t.Errorf("%v, -without hardening +as a service:\n%s", err, diff)
	}
	if strings.Contains(string(free), `{check="plugin-runs",object="",status="wrong"}`) {
		t.Errorf("the doctor does not see the plugin's service:\n%s", free)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("%s has %v, %v", dir, left, err)
	}
}

// testValidatorService sees that the validator's service registers, and refuses an RDMA container while the plugin's
// service is stopped.
func testValidatorService(ctx context.Context, t *testing.T, ctrd *containerd.Containerd) {
	t.Helper()
	systemd.Manage(t, "start", "nri-rdma-validator")
	awaitLog(t, validatorLog, "msg=registered", 1)
	systemd.Manage(t, "stop", "nri-rdma")
	sandbox, err := ctrd.RunPod(ctx, containerd.Pod{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = sandbox.Run(ctx, containerd.Container{Devices: containerd.Verbs(0)})
	if err == nil || !strings.Contains(err.Error(), "rdma-validator: pod default/") || !strings.Contains(err.Error(),
		"would start without memlock unlimited") {
		t.Errorf("without the plugin's service the creation gives %v, want it refused by the validator", err)
	}
	systemd.Manage(t, "start", "nri-rdma")
	again := 0 // as the kubelet does, which does not know when the plugin is registered
	await.Success(t, await.Timeout, "with the plugin's service: a container is started", func() error {
		again++
		_, err := sandbox.Run(ctx, containerd.Container{Name: fmt.Sprintf("again-%d", again), Devices: containerd.Verbs(0)})
		return err
	})
}

// runContainer starts a container in a pod of its own.
func runContainer(ctx context.Context, t *testing.T, ctrd *containerd.Containerd, pod containerd.Pod,
	ctr containerd.Container) string {
	t.Helper()
	sandbox, err := ctrd.RunPod(ctx, pod)
	if err != nil {
		t.Fatal(err)
	}
	id, err := sandbox.Run(ctx, ctr)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// lowContainer starts a container that holds an HCA, before there is a plugin, and gives its process.
func lowContainer(ctx context.Context, t *testing.T, ctrd *containerd.Containerd) int {
	t.Helper()
	id := runContainer(ctx, t, ctrd, containerd.Pod{}, containerd.Container{User: 1000, Devices: containerd.Verbs(0)})
	pid, err := ctrd.PID(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	if unlimited.MatchString(scratch.Read(t, fmt.Sprintf("/proc/%d/limits", pid))) {
		t.Fatal("the container may lock all there is without the plugin: nothing is left to be shown")
	}
	return pid
}

// installService installs the services by hand.
func installService(t *testing.T) {
	t.Helper()
	installPrograms(t, "nri-rdma", "rdma-spec")
	installUnits(t, "nri-rdma.service", "nri-rdma-validator.service", "rdma-spec-doctor.service", "rdma-spec-repair.service")
	// The node's containerd is in a cache below /root.
	scratch.File(t, units+"/rdma-spec-doctor.service.d/node.conf",
		"[Service]\nTimeoutStartSec=5min\nProtectHome=read-only\nExecStart=\nExecStart=/usr/local/bin/rdma-spec "+
			strings.Join(append(doctorOnTheNode, "--to", doctorFile), " ")+"\n", 0o644)
	scratch.File(t, units+"/nri-rdma.service.d/node.conf", forTheNode, 0o644)
	scratch.File(t, units+"/nri-rdma-validator.service.d/node.conf",
		"[Service]\nStandardError=append:"+validatorLog+"\n", 0o644)
}

func installPrograms(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		scratch.File(t, "/usr/local/bin/"+name, scratch.Read(t, filepath.Join(*bin, name)), 0o755)
	}
}

func installUnits(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		scratch.File(t, filepath.Join(units, name), scratch.Read(t, name), 0o644)
	}
}

// awaitLog waits until a log says something that many times.
func awaitLog(t *testing.T, file, text string, count int) {
	t.Helper()
	await.Success(t, 2*time.Minute, fmt.Sprintf("said %d times in %s: %s", count, file, text), func() error {
		log, err := os.ReadFile(file)
		if err == nil && strings.Count(string(log), text) < count {
			err = fmt.Errorf("it says:\n%s", log)
		}
		return err
	})
}

func wantNoPrivileges(t *testing.T, pid int) {
	t.Helper()
	status := scratch.Read(t, filepath.Join("/proc", strconv.Itoa(pid), "status"))
	got := map[string]string{}
	for _, field := range regexp.MustCompile(`(?m)^(Cap\w+|NoNewPrivs|Seccomp):\t(.*)$`).FindAllStringSubmatch(status,
		-1) {
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
	id := runContainer(ctx, t, ctrd, containerd.Pod{Namespace: "ml",
		Annotations: map[string]string{"rdma.noderesource.dev": "true"}}, containerd.Container{User: 1000})
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
