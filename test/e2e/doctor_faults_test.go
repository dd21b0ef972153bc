// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/daemon"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// faults are planted on the node in this order. After each fix, the node is healthy again.
func (c *clinic) faults() []fault {
	parts := nodeParts(c.T)
	dir := scratch.Dir(c)
	spec := func(name, text string) string {
		file := filepath.Join(dir, name)
		scratch.File(c.T, file, text, 0o644)
		return file
	}
	generated := string(rdmaSpec(c.T, "generate"))
	pod := runPod(c.T, containerd.Pod{Namespace: "ml", Name: "train-0"})
	var rails [3]rail
	for i := range rails {
		rails[i].pod = runPod(c.T, containerd.Pod{Namespace: "ml", Name: fmt.Sprintf("train-%d", i+1)})
	}
	remove := func(id *string) func(c *clinic) {
		return func(c *clinic) {
			if err := ctrd.RemoveContainer(within(c.T, patience), *id); err != nil {
				c.Error(err)
			}
		}
	}
	var ephemeral string
	var second *daemon.Process
	return []fault{
		{"all ports are turned off", func(c *clinic) { onNode(c.T, "ip link set eth0 down && ip link set dummy1 down") },
			"port-active", nil, false},
		{"a rail that a container holds is turned off", func(c *clinic) {
			onNode(c.T, "ip link set eth0 up && ip link set dummy1 up && ip route replace default via 10.0.2.2")
			ephemeral = runContainer(c.T, pod, containerd.Container{Name: "rail", Devices: containerd.Verbs(1)})
			onNode(c.T, "ip link set dummy1 down")
		}, "container-port", func(c *clinic) { // port-active prints this fix for a port that is turned off
			onNode(c.T, "ip link set dummy1 up")
			remove(&ephemeral)(c)
		}, false},
		{"a limited member of a partition, and a program that writes into the kernel's log", func(c *clinic) {
			onNode(c.T, "echo 'mlx5_core rxe0: print_health_info: synd 0x1: firmware internal error' >/dev/kmsg") // any container that runs as root can write this
			for file, text := range map[string]string{"link_layer": "InfiniBand", "pkeys/0": "0x7fff"} {
				onNode(c.T, "mount --bind "+spec(path.Base(file), text)+" /sys/class/infiniband/rxe0/ports/1/"+file)
			}
		}, "pkeys", func(c *clinic) {
			c.ignore()
			onNode(c.T, "umount /sys/class/infiniband/rxe0/ports/1/link_layer /sys/class/infiniband/rxe0/ports/1/pkeys/0")
		}, false},
		{"the module rdma_ucm is unloaded", func(c *clinic) {
			onNode(c.T, "ip link set dummy1 up && ip route replace default via 10.0.2.2 && rmmod rdma_ucm")
		}, "rdma-cm-module", nil, false},
		{"a device node is missing", func(c *clinic) { onNode(c.T, "rm /dev/infiniband/uverbs1") },
			"device-nodes", nil, false},
		{"a device node of another kind",
			func(c *clinic) { onNode(c.T, "rm /dev/infiniband/uverbs1 && touch /dev/infiniband/uverbs1") },
			"device-nodes", nil, false},
		{"rdma-cni in shared mode", func(c *clinic) {
			scratch.File(c.T, "/etc/cni/net.d/90-rdma.conf", `{"cniVersion": "1.0.0", "name": "rdma", "type": "rdma"}`, 0o644)
		}, "netns-mode", func(c *clinic) { onNode(c.T, "rm /etc/cni/net.d/90-rdma.conf") }, false},
		{"a configuration that does not parse", func(c *clinic) { c.edit("version = 3", "version = = 3") }, "runtime-config",
			func(c *clinic) { c.edit("version = = 3", "version = 3") }, false},
		{"a base spec that is missing", func(c *clinic) { c.addHandler("lost", parts.Runtime("runc"), dir+"/lost.json") },
			"base-spec", nil, true},
		{"1024 files, by hand", func(c *clinic) {
			c.addHandler("hand-made", parts.Runtime("runc"), spec("hand-made.json", handMadeSpec(c.T)))
		}, "base-spec-files", nil, true},
		{"an ociVersion that crun refuses", func(c *clinic) {
			c.addHandler("crun", parts.Runtime("crun"), spec("crun.json", strings.Replace(generated, `"ociVersion": "1.0.2"`,
				`"ociVersion": "1.3.0"`, 1)))
		}, "oci-version", nil, false},
		{"NRI is off", func(c *clinic) {
			c.edit("disable = false", "disable = true")
			if err := ctrd.Restart(within(c.T, 2*patience)); err != nil {
				c.Fatal(err)
			}
		}, "nri-on", nil, false},
		{"the socket of NRI is gone", func(c *clinic) { onNode(c.T, "rm "+containerd.NRISocket) }, "nri-socket", nil, false},
		{"plugins are required globally", func(c *clinic) {
			c.edit("[plugins.'io.containerd.nri.v1.nri']",
				"[plugins.'io.containerd.nri.v1.nri'.default_validator]\n  enable = true\n  required_plugins = "+
					"['rdma']\n[plugins.'io.containerd.nri.v1.nri']")
		}, "nri-required-plugins", func(c *clinic) { c.edit("  required_plugins = ['rdma']\n", "") }, false},
		{"two containerds", func(c *clinic) { // the second one has no pods, and takes over the NRI socket
			second = startAnother(c.T, filepath.Join(scratch.Dir(c.T), "second.sock"),
				"[plugins.'io.containerd.nri.v1.nri']\n  socket_path = '"+containerd.NRISocket+"'")
		}, "nri-owner", func(c *clinic) {
			second.Stop()
			c.run("systemctl restart containerd")
		}, false},
		{"ulimit-adjuster beside the plugin",
			func(c *clinic) { scratch.File(c.T, "/opt/nri/plugins/10-ulimit-adjuster", "", 0o644) }, "nri-rivals", nil, true},
		{"the plugin is killed", func(c *clinic) { c.stopPlugin() }, "plugin-runs", nil, false},
		{"the plugin's configuration is garbage", func(c *clinic) { scratch.File(c.T, pluginFile, "memlok: 1Gi\n", 0o644) },
			"plugin-config", func(c *clinic) { scratch.File(c.T, pluginFile, "memlock: unlimited\n", 0o644) }, false},
		{"the policy in force is garbage", func(c *clinic) {
			signal(c.T, c.plugin, syscall.SIGSTOP) // otherwise, it would rewrite its file
			scratch.File(c.T, policyFile, "garbage", 0o644)
		}, "policy-readable", nil, false},
		{"a container below policy", func(c *clinic) {
			c.stopPlugin()
			runContainer(c.T, pod, containerd.Container{Name: "below", Devices: containerd.Verbs(0)})
			c.run("systemctl restart nri-rdma")
		}, "container-memlock", nil, false},
		{"a user without the IPC_LOCK of the pod", func(c *clinic) {
			c.stopPlugin()
			runContainer(c.T, pod, containerd.Container{Name: "user", Devices: containerd.Verbs(0), User: 1000,
				AddCaps: []string{"IPC_LOCK"}})
			c.run("systemctl restart nri-rdma")
		}, "container-ipc-lock", nil, false},
		{"no netdev in the pod", func(c *clinic) {
			ephemeral = runContainer(c.T, pod, containerd.Container{Name: "alone", Devices: containerd.Verbs(0),
				AddCaps: []string{"SYS_ADMIN"}, Args: []string{"/usr/bin/unshare", "--net", "sleep", "1000000"}})
		}, "container-netdev", remove(&ephemeral), false},
		{"an interface of the HCA without an IP address", func(c *clinic) { rails[0].run(c.T, "", nil) },
			"container-netdev", func(c *clinic) { rails[0].address(c.T, "10.0.101.7") }, false},
		{"the GID index of another pod, whose interface is net1 as well", func(c *clinic) {
			rails[1].run(c.T, "10.0.101.8", map[string]string{"NCCL_IB_GID_INDEX": gidIndex(c.T, "10.0.101.7")})
		}, "container-gid-index", func(c *clinic) { rails[1].run(c.T, "10.0.101.18", nil) }, false},
		{"an HCA of another node in the environment", func(c *clinic) {
			rails[2].run(c.T, "10.0.101.9", map[string]string{"NCCL_IB_HCA": "mlx5_0"})
		}, "container-environment", func(c *clinic) { rails[2].run(c.T, "10.0.101.19", nil) }, false},
		{"a hostPath of /dev/infiniband", func(c *clinic) {
			ephemeral = runContainer(c.T, pod, containerd.Container{Name: "hostpath",
				Mounts: []containerd.Mount{{Host: "/dev/infiniband", Container: "/dev/infiniband"}}})
		}, "container-hostpath", remove(&ephemeral), false},
		{"a memlock of 64Ki by a hand-made spec, and no plugin", func(c *clinic) {
			c.uninstall()
			onNode(c.T, "rm -rf /var/lib/rdma-spec") // otherwise, the doctor would rightly report that the service is missing that an earlier fix configured
			c.addHandler("small", parts.Runtime("runc"), spec("small.json", strings.ReplaceAll(generated,
				"18446744073709551615", "65536")))
		}, "base-spec-memlock", nil, false},
		{"nothing gives memlock", func(c *clinic) {
			onNode(c.T, "rm -rf /var/lib/rdma-spec")
			scratch.File(c.T, containerdFile, c.before, 0o644)
			runContainer(c.T, pod, containerd.Container{Name: "starved", Devices: containerd.Verbs(0)})
		}, "container-memlock", nil, false},
	}
}

// rail is a container that has rxe1, and a macvlan on rxe1's netdev in its own network namespace. The macvlan is called
// net1, as in all pods.
type rail struct {
	pod *containerd.Sandbox
	id  string
}

// run replaces the container by one whose interface has an address; "" means none.
func (r *rail) run(t *testing.T, address string, env map[string]string) {
	t.Helper()
	if r.id != "" {
		if err := ctrd.RemoveContainer(within(t, patience), r.id); err != nil {
			t.Fatal(err)
		}
	}
	r.id = runContainer(t, r.pod, containerd.Container{Name: fmt.Sprintf("with-%d", len(env)), Env: env,
		Devices: containerd.Verbs(1), AddCaps: []string{"SYS_ADMIN"},
		Args: []string{"/usr/bin/unshare", "--net", "sleep", "1000000"}})
	await.Success(t, patience, "in a network namespace of its own", func() error {
		its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid(t, r.id)))
		nodes, errNode := os.Readlink("/proc/self/ns/net")
		if its == nodes {
			return errors.Join(err, errNode, errors.New("it is in the node's"))
		}
		return errors.Join(err, errNode)
	})
	onNode(t, fmt.Sprintf("ip link add rail0 link dummy1 type macvlan && ip link set rail0 netns %d name net1 && "+
		"nsenter -t %[1]d -n ip link set net1 up", pid(t, r.id)))
	if address != "" {
		r.address(t, address)
	}
}

// address adds an address to the interface, and waits until the HCA has a GID for it.
func (r *rail) address(t *testing.T, address string) {
	t.Helper()
	onNode(t, fmt.Sprintf("nsenter -t %d -n ip address add %s/24 dev net1", pid(t, r.id), address))
	gidIndex(t, address)
}

// gidIndex waits until rxe1 has a GID for an address, and returns the GID's index.
func gidIndex(t *testing.T, address string) (index string) {
	t.Helper()
	want := netip.MustParseAddr(address)
	await.Success(t, patience, "in the GID table", func() error {
		files, err := filepath.Glob("/sys/class/infiniband/rxe1/ports/1/gids/*")
		for _, file := range files {
			text, _ := os.ReadFile(file) // fails if the entry has disappeared
			var gid netip.Addr
			if gid.UnmarshalText(text[:max(0, len(text)-1)]) == nil && gid.Unmap() == want {
				index = filepath.Base(file)
				return nil
			}
		}
		return errors.Join(err, errors.New(address+" is not there"))
	})
	return index
}

// TestDoctorWithoutPlugin runs the doctor on a node without the plugin, and then with it. The doctor names a container
// that has the runtime's own limit, with the cause. It does not name a container that runs as root with IPC_LOCK,
// because the kernel lets it register all memory, nor containers that the plugin adjusted.
func TestDoctorWithoutPlugin(t *testing.T) {
	if err := os.RemoveAll(policyFile); err != nil { // another test's policy: this node has not had the plugin yet
		t.Fatal(err)
	}
	pod := runPod(t, containerd.Pod{Namespace: "ml", Name: "trainer"})
	low := runContainer(t, pod, withLocker(containerd.Container{Name: "low", Devices: containerd.Verbs(0)}))
	root := runContainer(t, pod, withLocker(containerd.Container{Name: "root", Devices: containerd.Verbs(0),
		AddCaps: []string{"IPC_LOCK"}}))
	// The kernel does what the doctor reports.
	const megabytes = 32 << 20
	if got := locker(t, low, "mmap", megabytes); got == "locked" {
		t.Errorf("the container at the runtime's limit locks 32 MiB")
	}
	if got := locker(t, root, "mmap", megabytes); got != "locked" {
		t.Errorf("root with IPC_LOCK cannot lock 32 MiB: %s", got)
	}
	wrong := wrongMemlock(t)
	if len(wrong) != 1 || wrong[0].Object != "container ml/trainer low" ||
		!strings.Contains(wrong[0].Text, "can register at most 8Mi") ||
		!strings.Contains(wrong[0].Text, "On this node, neither a plugin nor a runtime setting raises memlock") {
		t.Errorf("without the plugin: %+v", wrong)
	}
	if file := os.Getenv("RDMA_RECORD"); file != "" { // for make recorded-node
		if _, stderr, status := call(t, "collect", "--to", file, "--timeout", "1m"); status != 0 {
			t.Errorf("collect: exit status %d\n%s", status, stderr)
		}
	}
	startPlugin(t, "{}")
	runContainer(t, pod, containerd.Container{Name: "adjusted", Devices: containerd.Verbs(0), User: 1000})
	call(t, "repair", "ml/trainer") // it was created without the plugin
	if wrong := wrongMemlock(t); len(wrong) > 0 {
		t.Errorf("with the plugin: %+v", wrong)
	}
}

// wrongMemlock returns the doctor's findings about the memlock of containers and of the node.
func wrongMemlock(t *testing.T) []finding {
	t.Helper()
	all, status := doctor(t, "--only", "container-memlock,container-ipc-lock,memlock-source")
	wrong := withStatus(all, "wrong")
	if (status == 1) != (len(wrong) > 0) {
		t.Errorf("exit status %d with %d faults: %+v", status, len(wrong), all)
	}
	return wrong
}
