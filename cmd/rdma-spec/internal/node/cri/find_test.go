// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri/critest"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// shortRoot makes a root. A test's own directory has too long a name for a socket.
func shortRoot(t *testing.T) string {
	t.Helper()
	root := scratch.Dir(t)
	t.Setenv(endpointVariable, "")
	return root
}

// sockets connects, and gives the sockets of the runtimes that are found, below the root, and why others do not count.
func sockets(t *testing.T, root string) (found []string, skipped string) {
	t.Helper()
	runtimes, others, err := Connect(t.Context(), "", root, AnswersWithin)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range runtimes {
		found = append(found, strings.TrimPrefix(r.Socket, root))
		r.Close()
	}
	var reasons []string
	for _, err := range others {
		reasons = append(reasons, strings.ReplaceAll(err.Error(), root, ""))
	}
	return found, strings.Join(reasons, "\n")
}

// All runtimes that serve CRI count; one that hangs costs two seconds, and one that is gone nothing.
func TestConnectFindsAll(t *testing.T) {
	root := shortRoot(t)
	critest.Serve(t, critest.Options{NoCRI: true, Root: root, Path: "run/containerd/containerd.sock"})
	critest.Serve(t, critest.Options{Root: root, Path: "run/k3s/containerd/containerd.sock"})
	critest.Serve(t, critest.Options{Name: "cri-o", Version: "1.36.0", Root: root, Path: "run/crio/crio.sock"})
	scratch.Socket(t, filepath.Join(root, "run/k0s/containerd.sock"))
	gone := filepath.Join(root, "var/snap/microk8s/common/run/containerd.sock")
	listener := scratch.Socket(t, gone)
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = listener.Close() // its socket stays, as after a crash

	start := time.Now()
	found, skipped := sockets(t, root)
	took := time.Since(start)
	if diff := cmp.Diff([]string{"/run/crio/crio.sock", "/run/k3s/containerd/containerd.sock"}, found); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
	want := "/run/containerd/containerd.sock: the runtime does not provide the CRI: if the runtime is containerd, remove cri from " +
		"disabled_plugins\n" +
		"cannot connect to the runtime at /var/snap/microk8s/common/run/containerd.sock: connection refused\n" +
		"/run/k0s/containerd.sock: the runtime did not respond in time"
	if diff := cmp.Diff(want, skipped); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
	if took < AnswersWithin || took > 2*AnswersWithin {
		t.Errorf("took %s, want %s for the runtime that hangs", took, AnswersWithin)
	}
}

// A slow runtime is waited for where no other one answers.
func TestConnectFindsASlowOne(t *testing.T) {
	const within = 300 * time.Millisecond
	root := shortRoot(t)
	critest.Serve(t, critest.Options{Takes: 2 * within, Root: root, Path: "run/containerd/containerd.sock"})
	runtimes, _, err := Connect(t.Context(), "", root, within)
	if err != nil || len(runtimes) != 1 {
		t.Fatalf("%d runtimes, %v", len(runtimes), err)
	}
	runtimes[0].Close()
}

func TestConnectFindsNone(t *testing.T) {
	root := shortRoot(t)
	_, _, err := Connect(t.Context(), "", root, AnswersWithin)
	if err == nil || !strings.Contains(err.Error(), "run/crio/crio.sock") || !strings.Contains(err.Error(),
		"set --runtime-endpoint") {
		t.Errorf("no socket: %v", err)
	}
	critest.Serve(t, critest.Options{NoCRI: true, Root: root, Path: "run/containerd/containerd.sock"})
	critest.Serve(t, critest.Options{NoCRI: true, Root: root, Path: "run/k0s/containerd.sock"})
	_, _, err = Connect(t.Context(), "", root, AnswersWithin)
	if err == nil || strings.Count(err.Error(), "does not provide the CRI") != 2 || strings.Contains(err.Error(), "\n") {
		t.Errorf("two sockets that do not serve CRI, in one line: %v", err)
	}
}

// A socket with two names is one runtime.
func TestConnectCountsEachRuntimeOnce(t *testing.T) {
	root := shortRoot(t)
	critest.Serve(t, critest.Options{Root: root, Path: "run/k3s/containerd/containerd.sock"})
	scratch.Files(t, root, map[string]string{"run/containerd": "-> k3s/containerd"}, 0)
	if found, skipped := sockets(t, root); !slices.Equal(found, []string{"/run/containerd/containerd.sock"}) ||
		skipped != "" {
		t.Errorf("found %v, skipped %s", found, skipped)
	}
}

// What names an endpoint counts alone: the flag, else the variable, else crictl's configuration below the root.
func TestConnectToTheNamedEndpoint(t *testing.T) {
	root := shortRoot(t)
	flagged := critest.Serve(t, critest.Options{Root: root, Path: "flag.sock"})
	variable := critest.Serve(t, critest.Options{Root: root, Path: "variable.sock"})
	crictl := critest.Serve(t, critest.Options{Root: root, Path: "opt/crictl.sock"})
	critest.Serve(t, critest.Options{Root: root, Path: "run/containerd/containerd.sock"})
	configure := func(text string) {
		scratch.File(t, filepath.Join(root, crictlConfig), text, 0o644)
	}
	configure("timeout: 10\n")
	if r := connected(t, "", root); r.Socket != filepath.Join(root, "run/containerd/containerd.sock") {
		t.Errorf("crictl.yaml names none: %s", r.Socket)
	}
	configure("runtime-endpoint: unix:///opt/crictl.sock\nimage-endpoint: unix:///elsewhere\n")
	if r := connected(t, "", root); r.Socket != crictl.Socket {
		t.Errorf("crictl.yaml: %s", r.Socket)
	}
	configure("runtime-endpoint: unix:///var/run/crictl.sock\n") // /var/run is a link on the node
	scratch.Files(t, root, map[string]string{"var/run": "-> /opt"}, 0)
	if r := connected(t, "", root); r.Socket != crictl.Socket {
		t.Errorf("crictl.yaml by a link: %s", r.Socket)
	}
	t.Setenv(endpointVariable, "unix://"+variable.Socket)
	if r := connected(t, "", root); r.Socket != variable.Socket {
		t.Errorf("the variable: %s", r.Socket)
	}
	if r := connected(t, flagged.Socket, root); r.Socket != flagged.Socket {
		t.Errorf("the flag: %s", r.Socket)
	}
	for endpoint, want := range map[string]string{
		"/nonexistent.sock": "cannot connect to the runtime at /nonexistent.sock: no such file or directory",
		"tcp://127.0.0.1:1": `--runtime-endpoint is set to "tcp://127.0.0.1:1": specify the path of a socket, such as unix:///run/containerd/containerd.sock`,
	} {
		if _, _, err := Connect(t.Context(), endpoint, root, AnswersWithin); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", endpoint, err, want)
		}
	}
	t.Setenv(endpointVariable, "")
	configure("runtime-endpoint: [\n")
	if _, _, err := Connect(t.Context(), "", root, AnswersWithin); err == nil || !strings.HasPrefix(err.Error(),
		filepath.Join(root, crictlConfig)+": ") {
		t.Errorf("a broken crictl.yaml: %v", err)
	}
}

func TestRuntimeThatDoesNotAnswer(t *testing.T) {
	root := shortRoot(t)
	scratch.Socket(t, filepath.Join(root, "s"))
	for _, within := range []time.Duration{100 * time.Millisecond, 0} { // 0: no time was left when its turn came
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		if _, _, err := Connect(ctx, filepath.Join(root, "s"), "/", AnswersWithin); !errors.Is(err, ErrLate) {
			t.Errorf("within %s: %v, want that it is late", within, err)
		}
	}
}

// A runtime that hangs when it is asked about one container still answers for the others.
func TestContainerThatHangs(t *testing.T) {
	usual := containerWithin
	containerWithin = time.Second
	t.Cleanup(func() { containerWithin = usual })
	fake := critest.Serve(t, critest.Options{},
		critest.Container{Namespace: "ml", Pod: "train-0", Name: "main", ID: "a", Hangs: true},
		critest.Container{Namespace: "ml", Pod: "train-1", Name: "main", ID: "b", Spec: specs.Spec{Linux: &specs.Linux{}}},
	)
	ctx, cancel := context.WithTimeout(t.Context(), 5*containerWithin)
	defer cancel()
	got, err := Containers(ctx, []*Runtime{connected(t, fake.Socket, "/nowhere")})
	if err != nil || len(got) != 2 || got[0].Problem != ErrLate.Error() || got[1].Problem != "" {
		t.Errorf("%+v, %v", got, err)
	}
}

// Only the pods that are named are asked about.
func TestContainersOfNamedPods(t *testing.T) {
	fake := critest.Serve(t, critest.Options{},
		critest.Container{Namespace: "ml", Pod: "train-0", Name: "main", ID: "a", Info: "{}"},
		critest.Container{Namespace: "ml", Pod: "train-1", Name: "main", ID: "b", Info: "{}"},
	)
	r := connected(t, fake.Socket, "/nowhere")
	got, err := Containers(t.Context(), []*Runtime{r}, "ml/train-1")
	if err != nil || len(got) != 1 || got[0].ID != "b" || fake.Asked() != 1 {
		t.Errorf("%+v, %v; asked %d times", got, err, fake.Asked())
	}
	pods, err := r.Pods(t.Context())
	slices.Sort(pods)
	if err != nil || !slices.Equal(pods, []string{"ml/train-0", "ml/train-1"}) {
		t.Errorf("pods %v, %v", pods, err)
	}
}
