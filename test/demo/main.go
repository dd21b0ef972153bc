// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Command demo shows the project's main task on a real RDMA node: a pod that cannot register memory, and the three ways
// in which a pod can. It runs on the node, which `make demo` boots. It exits with 1 if anything differs.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/daemon"
)

const (
	// bandwidth is the command that users usually run first on a new RDMA node. It registers 32 MiB.
	bandwidth = "ib_write_bw -d rxe0 -x 1 -s 16M -n 5 -F"
	timeout   = 10 * time.Minute
	config    = "inject:\n  namespaces: [ml]\n"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if err := show(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to cancel
	}
}

func show(ctx context.Context) error {
	executable, err := os.Executable()
	if err != nil {
		return err
	}
	d := demo{bin: filepath.Dir(executable)}
	if d.containerd, err = containerd.Start(ctx, containerd.Options{Version: "2.4.2", Runtime: "runc"}); err != nil {
		return err
	}
	defer d.containerd.Stop()
	for _, chapter := range []func(context.Context) error{d.node, d.without, d.withPlugin, d.generated} {
		if err := chapter(ctx); err != nil {
			return err
		}
	}
	return nil
}

type demo struct {
	bin        string
	containerd *containerd.Containerd
}

func (d demo) node(ctx context.Context) error {
	title("The node: real kernel, real verbs, software HCAs (soft-RoCE)")
	return d.tool(ctx, "devices")
}

func (d demo) without(ctx context.Context) error {
	title("A pod with the HCA rxe0, on a node without rdma-spec")
	plain("(The demo requests the device from the runtime, as the kubelet does for a device plugin.)")
	server, client, err := d.pod(ctx, containerd.Pod{Namespace: "ml", Name: "before"}, containerd.Verbs(0))
	if err != nil {
		return err
	}
	limit, err := d.shell(ctx, client, "ulimit -l")
	if err != nil {
		return err
	}
	failure, err := d.measure(ctx, server, client)
	if err != nil {
		return err
	}
	plain(failure)
	if limit == "unlimited" || !strings.Contains(failure, "Couldn't allocate MR") {
		return errors.New("the pod should not have been able to register memory")
	}
	bad("RDMA does not work: the container may lock no more than " + limit + " KiB")
	return nil
}

func (d demo) withPlugin(ctx context.Context) error {
	file := filepath.Join(os.TempDir(), "rdma-spec-config.yaml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return err
	}
	plugin, err := daemon.Start(nil, filepath.Join(d.bin, "nri-rdma"), "--config", file, "--socket", containerd.NRISocket)
	if err != nil {
		return err
	}
	defer plugin.Stop()
	if err := plugin.AwaitLog(ctx, "msg=registered"); err != nil {
		return err
	}
	title("1. The same pod, with nri-rdma on the node: no configuration, no annotation")
	if err := d.works(ctx, plugin, containerd.Pod{Namespace: "ml", Name: "device"}, containerd.Verbs(0)); err != nil {
		return err
	}
	title("2. A pod without a device, in a namespace that may opt in")
	plain("# /etc/rdma-spec/config.yaml\n" + config)
	plain("metadata:\n  annotations:\n    rdma.noderesource.dev: \"true\"\n")
	annotated := map[string]string{"rdma.noderesource.dev": "true"}
	return d.works(ctx, plugin, containerd.Pod{Namespace: "ml", Name: "annotated", Annotations: annotated}, nil)
}

// works shows that a pod has what it needs, and explains why.
func (d demo) works(ctx context.Context, plugin *daemon.Process, pod containerd.Pod,
	devices []containerd.Device) error {
	server, client, err := d.pod(ctx, pod, devices)
	if err != nil {
		return err
	}
	limit, err := d.shell(ctx, client, "ulimit -l")
	if err != nil {
		return err
	}
	if _, err := d.shell(ctx, client, "ls /dev/infiniband"); err != nil {
		return err
	}
	result, err := d.measure(ctx, server, client)
	if err != nil {
		return err
	}
	speed := average.FindStringSubmatch(result)
	if speed == nil {
		return fmt.Errorf("no transfer: %s", result)
	}
	plain(speed[0])
	if limit != "unlimited" {
		return fmt.Errorf("the limit of the pod is %s", limit)
	}
	good(speed[1] + " MB/s from one container to the other (this node is virtual)")
	plain("The plugin's log gives the reason:")
	for line := range strings.Lines(plugin.Log()) {
		if strings.Contains(line, "container=client") && strings.Contains(line, "pod="+pod.Namespace+"/"+pod.Name+" ") {
			plain("  " + line)
		}
	}
	return nil
}

var average = regexp.MustCompile(`(?m)^\s*\d+\s+\d+\s+[\d.]+\s+([\d.]+)`)

// pod creates a pod with two containers, server and client, and returns their IDs.
func (d demo) pod(ctx context.Context, pod containerd.Pod, devices []containerd.Device) (server,
	client string, err error) {
	sandbox, err := d.containerd.RunPod(ctx, pod)
	if err != nil {
		return "", "", err
	}
	// ib_write_bw reads the CPU's clock rate, which the kernel does not show on every machine.
	clock := []containerd.Mount{{Host: "/proc/cpuinfo", Container: "/proc/cpuinfo"}}
	if server, err = sandbox.Run(ctx, containerd.Container{Name: "server", Devices: devices, Mounts: clock}); err != nil {
		return "", "", err
	}
	client, err = sandbox.Run(ctx, containerd.Container{Name: "client", Devices: devices, Mounts: clock})
	return server, client, err
}

// measure runs the benchmark from the client's container to the server's, and returns the client's output without its
// settings.
func (d demo) measure(ctx context.Context, server, client string) (string, error) {
	served := make(chan error, 1)
	go func() {
		_, err := d.containerd.Shell(ctx, server, "exec "+bandwidth)
		served <- err
	}()
	command(bandwidth + " 127.0.0.1")
	result, err := d.containerd.Shell(ctx, client, `i=0; while [ $i -lt 300 ]; do
		out=$(`+bandwidth+` 127.0.0.1 2>&1) && break
		case "$out" in *"Couldn't connect"*) i=$((i+1)); sleep 0.1;; *) break;; esac
	done; echo "$out"`)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(result.Out), <-served
}

func (d demo) generated(ctx context.Context) error {
	title("3. A node whose runtime has no NRI")
	if err := d.tool(ctx, "generate", "--to", "/etc/containerd/rdma-spec.json"); err != nil {
		return err
	}
	plain("Give the file to a runtime handler as its base_runtime_spec:\n" +
		"  [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.rdma]\n" +
		"    runtime_type = \"io.containerd.runc.v2\"\n" +
		"    base_runtime_spec = \"/etc/containerd/rdma-spec.json\"")
	return nil
}

// tool runs rdma-spec, and shows its output.
func (d demo) tool(ctx context.Context, args ...string) error {
	command("rdma-spec " + strings.Join(args, " "))
	cmd := exec.CommandContext(ctx, filepath.Join(d.bin, "rdma-spec"), args...)
	cmd.Stdout = os.Stdout
	cmd.Stderr = os.Stdout
	return cmd.Run()
}

// shell runs a command in a container, and shows the command and its output.
func (d demo) shell(ctx context.Context, id, script string) (string, error) {
	command(script)
	result, err := d.containerd.Shell(ctx, id, script+" 2>&1")
	if err != nil {
		return "", err
	}
	out := strings.TrimSpace(result.Out)
	plain(out)
	return out, nil
}
