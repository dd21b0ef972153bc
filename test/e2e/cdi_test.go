// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/node"
	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

const (
	cdiFile   = "/var/run/cdi/rdma.yaml"
	cdiDevice = "rdma.noderesource.dev/hca=rxe0"
	// lockInside is a script for a container. It prints how much memory the container can lock, and locks 64 MiB.
	lockInside = "ulimit -l; /opt/locker mmap 67108864"
	enough     = "unlimited\nlocked\n"
	// tooLittle is the output of lockInside with the kernel's default limit.
	tooLittle = "8192\nresource temporarily unavailable\n"
)

// writeCDI installs the hook, and writes the node's CDI file with these flags. Both are removed when the test ends.
func writeCDI(t *testing.T, flags ...string) {
	t.Helper()
	hook := filepath.Join(scratch.Dir(t), "rdma-hook")
	scratch.File(t, hook, scratch.Read(t, filepath.Join(*bin, "rdma-hook")), 0o755)
	t.Cleanup(func() { onNodeAfter(t, "rm -f "+cdiFile) })
	rdmaSpec(t, append([]string{"cdi", "generate", "--to", cdiFile, "--hook", hook}, flags...)...)
	rdmaSpec(t, "cdi", "list") // fails if something is wrong
	if text := scratch.Read(t, cdiFile); len(flags) == 0 && !strings.Contains(text, hook) {
		t.Fatalf("the file has no hook:\n%s", text)
	}
}

// needsCTR skips a test if ctr does not support CDI.
func needsCTR(t *testing.T) {
	t.Helper()
	if strings.HasPrefix(*version, "1.") {
		t.Skip("ctr has CDI since 2.0; CRI of 1.7 has it")
	}
}

// ctrRun runs lockInside in a container with ctr, and returns its output. The output goes through a file, because on a
// busy host ctr can end before it has printed a container's last line.
func ctrRun(t *testing.T, user int) string {
	t.Helper()
	parts := nodeParts(t)
	said := filepath.Join(scratch.Dir(t), "said")
	if err := errors.Join(os.WriteFile(said, nil, 0o666), os.Chmod(said, 0o666)); err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("cdi-%d", user)
	runOnNode(t, nil, filepath.Join(parts.Containerd(*version), "ctr"), "-n", "k8s.io", "run", "--rm", "--net-host",
		"--user", strconv.Itoa(user),
		"--runc-binary", parts.Runtime(*runtime), "--mount", "type=bind,src="+*bin+"/locker,dst=/opt/locker,options=rbind:ro",
		"--mount", "type=bind,src="+said+",dst=/said,options=rbind:rw",
		"--device", cdiDevice, node.ImageName("busybox"), name, "/bin/busybox", "sh", "-c",
		"{ "+lockInside+"; } >/said; true")
	return scratch.Read(t, said)
}

// runOnNode runs a program, and returns its standard output. Exit status 1 is not an error, because a container that
// cannot lock memory ends with it.
func runOnNode(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(within(t, 2*patience), name, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), env...), &stdout, &stderr
	var ended *exec.ExitError
	if err := cmd.Run(); err != nil && (!errors.As(err, &ended) || ended.ExitCode() != 1 || stdout.Len() == 0) {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, &stderr)
	}
	return stdout.String()
}

// A container with a CDI device can lock memory, as root and as another user; without the hook, it cannot. On each
// runtime, Kubernetes containers get what the plugin's policy grants. Without a plugin, they get memlock only if an
// administrator has configured that.
func TestCDI(t *testing.T) {
	t.Run("ctr", func(t *testing.T) {
		needsCTR(t)
		writeCDI(t)
		for _, user := range []int{0, 1000} {
			if got := ctrRun(t, user); got != enough {
				t.Errorf("user %d: a container says %q, want %q", user, got, enough)
			}
		}
	})
	t.Run("ctr without the hook", func(t *testing.T) {
		needsCTR(t)
		writeCDI(t, "--memlock", "none")
		if got := ctrRun(t, 0); got != tooLittle {
			t.Errorf("a container says %q, want %q", got, tooLittle)
		}
	})
	t.Run("CRI", testCRIWithoutPlugin)
	t.Run("beside the plugin", func(t *testing.T) {
		writeCDI(t, "--kubernetes")
		startPlugin(t, "memlock: 16Gi")
		pod := runPod(t, containerd.Pod{Annotations: map[string]string{"rdma.noderesource.dev/container.out": `false`}})
		expectMemlock(t, runContainer(t, pod, containerd.Container{Name: "policy", CDIDevices: []string{cdiDevice}}),
			strconv.Itoa(16<<30))
		expectMemlock(t, runContainer(t, pod, containerd.Container{Name: "out", CDIDevices: []string{cdiDevice}}),
			kernelDefault)
	})
	t.Run("in a handler that the plugin skips", func(t *testing.T) {
		writeCDI(t, "--kubernetes")
		startPlugin(t, `skipRuntimeHandlers: [""]`)
		expectMemlock(t, runContainer(t, runPod(t, containerd.Pod{}), containerd.Container{CDIDevices: []string{cdiDevice}}),
			kernelDefault)
	})
}

// testCRIWithoutPlugin checks that Kubernetes containers with a CDI device are raised only if an administrator has
// configured that.
func testCRIWithoutPlugin(t *testing.T) {
	onNode(t, "rm -f /run/rdma-spec/policy.yaml") // an earlier test's plugin has left this file, which a node without NRI does not have
	pod := runPod(t, containerd.Pod{})
	writeCDI(t, "--kubernetes")
	lock := containerd.Container{Name: "root", CDIDevices: []string{cdiDevice},
		Args: []string{"/opt/locker", "mmap", "67108864"}}
	locks := runContainer(t, pod, withLocker(lock))
	expectMemlock(t, runContainer(t, pod, containerd.Container{Name: "uid-1000", User: 1000,
		CDIDevices: []string{cdiDevice}}), "unlimited")
	if got, err := pod.Wait(within(t, 2*patience), locks); err != nil || strings.TrimSpace(got.Out) != "locked" {
		t.Errorf("the container says %q, %v", got.Out, err)
	}
	writeCDI(t)
	expectMemlock(t, runContainer(t, pod, containerd.Container{Name: "off", CDIDevices: []string{cdiDevice}}),
		kernelDefault)
}

// Debian 12's Podman, with crun and with runc, and Debian 13's Podman, with its own crun, give a container with a CDI
// device the memlock that it needs.
func TestPodman(t *testing.T) {
	parts := nodeParts(t)
	program, library := parts.Podman()
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%v: call rdma-node with --parts core", err)
	}
	t.Run("4.3", func(t *testing.T) {
		podman := podman{storage: "podman", runtime: parts.Runtime("crun"), env: []string{library}, command: []string{program}}
		podman.load(t)
		writeCDI(t)
		podman.expect(t, 1000, enough)
		writeCDI(t, "--memlock", "none")
		podman.expect(t, 0, tooLittle)
		writeCDI(t)
		podman.runtime = parts.Runtime("runc")
		podman.expect(t, 0, enough)
	})
	t.Run("5.4", func(t *testing.T) {
		podman := podman{storage: "podman-13", runtime: "crun",
			command: []string{"unshare", "--mount", "sh", "-ec", inTree, "sh", parts.Podman13(), *bin}}
		podman.load(t)
		writeCDI(t)
		podman.expect(t, 1000, enough)
		writeCDI(t, "--memlock", "none")
		podman.expect(t, 0, tooLittle)
	})
}

// inTree runs Podman in its own root directory, $1. The directory contains the node's devices, the node's state, and
// this project's programs, $2.
const inTree = `tree=$1 bin=$2; shift 2
mkdir -p /run/tree; mount -t tmpfs tree /run/tree; cd /run/tree; mkdir upper work root
mount -t overlay -o lowerdir=$tree,upperdir=upper,workdir=work tree root; cd root
mkdir -p .$bin; for shared in /dev /proc /sys /var/lib /tmp $bin; do mount --rbind $shared .$shared; done
mkdir -p var/run/cdi /run/cdi; mount --bind /run/cdi var/run/cdi; cp /etc/resolv.conf etc
exec chroot . /usr/bin/podman "$@"`

// podman is a Podman of one version, with one OCI runtime.
type podman struct {
	storage, runtime string
	env, command     []string
}

func (p podman) call(t *testing.T, args ...string) string {
	t.Helper()
	args = slices.Concat(p.command[1:], []string{"--root", "/var/lib/" + p.storage, "--runroot", "/run/" + p.storage,
		"--cgroup-manager", "cgroupfs", "--events-backend", "none", "--runtime", p.runtime}, args)
	return runOnNode(t, p.env, p.command[0], args...)
}

func (p podman) load(t *testing.T) {
	t.Helper()
	parts := nodeParts(t)
	image := filepath.Join(scratch.Dir(t), "busybox.tar") // in a directory that Podman sees in its root directory
	scratch.File(t, image, scratch.Read(t, parts.Image("busybox")), 0o644)
	p.call(t, "load", "-q", "-i", image)
}

// expect runs lockInside in a container with the CDI device, and compares its output. Starting a container takes half a
// minute here.
func (p podman) expect(t *testing.T, user int, want string) {
	t.Helper()
	got := p.call(t, "run", "--rm", "--network", "host", "--user", strconv.Itoa(user), "--log-driver", "none",
		"--volume", *bin+"/locker:/opt/locker:ro", "--device", cdiDevice, node.ImageName("busybox"),
		"/bin/busybox", "sh", "-c", lockInside)
	if got != want {
		t.Errorf("%s, user %d: a container says %q, want %q", p.runtime, user, got, want)
	}
}

const dockerSocket = "/run/docker-test.sock"

// docker is a client of a Docker daemon, which sends the same requests as the program docker.
type docker struct{ client http.Client }

// startDocker runs a Docker daemon that uses the shared containerd. It ends with the test.
func startDocker(t *testing.T, parts node.PartSet) docker {
	t.Helper()
	d := docker{http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _,
		_ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", dockerSocket)
	}}}}
	dockerd := start(t, parts.Docker(), "--host", "unix://"+dockerSocket, "--containerd", containerd.Socket,
		"--data-root", "/var/lib/docker", "--exec-opt", "native.cgroupdriver=cgroupfs",
		"--bridge", "none", "--userland-proxy=false", "--iptables=false", "--ip6tables=false")
	awaitLog(t, dockerd, "API listen on "+dockerSocket)
	d.ask(t, http.MethodPost, "/images/load", strings.NewReader(scratch.Read(t, parts.Image("busybox"))))
	return d
}

// ask sends a request, and returns the response.
func (d docker) ask(t *testing.T, method, path string, body io.Reader) []byte {
	t.Helper()
	request, err := http.NewRequestWithContext(within(t, 2*patience), method, "http://docker"+path, body)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := d.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }() // it was read to its end
	answer, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode >= http.StatusBadRequest {
		t.Fatalf("%s %s: %s, %v: %s", method, path, response.Status, err, answer)
	}
	return answer
}

// run runs lockInside like `docker run --device`, and returns its output.
func (d docker) run(t *testing.T, user int) string {
	t.Helper()
	config := fmt.Sprintf(`{"Image": %q, "Cmd": ["/bin/busybox", "sh", "-c", %q], "User": "%d", "Tty": true, "HostConfig": {
		"NetworkMode": "host", "Binds": ["%s/locker:/opt/locker:ro"],
		"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": [%q]}]}}`, node.ImageName("busybox"), lockInside, user, *bin, cdiDevice)
	var created struct{ ID string }
	if err := json.Unmarshal(d.ask(t, http.MethodPost, "/containers/create", strings.NewReader(config)), &created); err != nil {
		t.Fatal(err)
	}
	container := "/containers/" + created.ID
	d.ask(t, http.MethodPost, container+"/start", nil)
	d.ask(t, http.MethodPost, container+"/wait", nil)
	output := d.ask(t, http.MethodGet, container+"/logs?stdout=1", nil)
	d.ask(t, http.MethodDelete, container, nil)
	return strings.ReplaceAll(string(output), "\r\n", "\n")
}

// Docker gives a container with a CDI device the memlock that it needs.
func TestDocker(t *testing.T) {
	parts := nodeParts(t)
	if _, err := os.Stat(parts.Docker()); err != nil {
		t.Fatalf("%v: call rdma-node with --parts core", err)
	}
	writeCDI(t)
	d := startDocker(t, parts)
	for _, user := range []int{0, 1000} {
		if got := d.run(t, user); got != enough {
			t.Errorf("user %d: a container says %q, want %q", user, got, enough)
		}
	}
	writeCDI(t, "--memlock", "none")
	if got := d.run(t, 0); got != tooLittle {
		t.Errorf("without the hook a container says %q, want %q", got, tooLittle)
	}
}
