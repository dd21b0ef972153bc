// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package storedspec

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/test/bufconn"

	"github.com/rdma-spec/rdma-spec/plugin/breaker"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec/storedspectest"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
	"github.com/rdma-spec/rdma-spec/test/testing/socketproxy"
)

// The sockets of two containerds on a node with k3s and Docker. Docker's is first in the table of places.
const docker, k3s = "/run/containerd/containerd.sock", "/run/k3s/containerd/containerd.sock"

// aContainerd is one of several containerds.
type aContainerd struct {
	*storedspectest.Server
	*socketproxy.Proxy
}

// severalContainerds returns a client on a node that has containerds at these places. The containerds are in memory.
func severalContainerds(t *testing.T, o Options, places ...string) (*Client, map[string]aContainerd) {
	t.Helper()
	o.Root = scratch.Dir(t)
	byPlace := map[string]aContainerd{}
	for _, place := range places {
		listener := bufconn.Listen(1 << 16)
		byPlace[place] = aContainerd{storedspectest.Serve(t, listener), socketproxy.InMemory(t, listener.Dial)}
		must.Succeed(t, os.MkdirAll(filepath.Dir(o.Root+place), 0o755))
		must.Succeed(t, syscall.Mknod(o.Root+place, syscall.S_IFSOCK|0o600, 0)) // the client only checks that it exists
	}
	client := newClient(t, o)
	client.connections.dial = func(ctx context.Context, socket string) (net.Conn, error) {
		return byPlace[strings.TrimPrefix(socket, o.Root)].Dial(ctx, socket)
	}
	t.Cleanup(func() { time.Sleep(client.Budget + time.Millisecond) }) // by then, failed connections are closed
	return client, byPlace
}

// On a node with k3s and Docker, the client finds the container, whatever Docker's containerd does, and whether or not
// it is called first.
func TestConfirm_severalContainerds(t *testing.T) {
	for name, mode := range map[string]socketproxy.Mode{
		"well": socketproxy.Pass, "silent": socketproxy.Silent, "slow": socketproxy.Slow, "refusing": socketproxy.Refuse,
		"garbage": socketproxy.Garbage,
	} {
		for of, places := range map[string][2]string{"Docker's": {docker, k3s}, "k3s's": {k3s, docker}} {
			t.Run(of+" "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					other, keeper := places[0], places[1]
					client, containerds := severalContainerds(t, Options{Budget: aBudget}, docker, k3s)
					containerds[other].Put("moby", "train", storedspectest.TrainingSpec())
					containerds[other].Set(t, mode)
					for range 2 * breaker.Failures {
						containerds[keeper].Put("k8s.io", "train", storedspectest.TrainingSpec())
						if changed, took, err := timed(t.Context(), client); !changed || err != nil || took > 0 {
							t.Errorf("Confirm gives %v, %v after %s", changed, err, took)
						}
					}
					if n := containerds[keeper].Updates("train"); n != 2*breaker.Failures {
						t.Errorf("the container was written %d times", n)
					}
					if n := containerds[other].Updates("train"); n != 0 {
						t.Errorf("a container of another namespace was written %d times", n)
					}
					// The client now knows which containerd has the containers: if a container is not there, it does not exist.
					for range breaker.Failures + 1 {
						if _, err := client.Confirm(t.Context(), "gone", ipcLock); !errors.Is(err, ErrNotFound) {
							t.Errorf("Apply to a container that is gone gives %v", err)
						}
					}
				})
			})
		}
	}
}

// Before the client has found any container, a containerd that fails may be the one that has this container.
func TestConfirm_notFoundAtSeveral(t *testing.T) {
	for name, test := range map[string]struct {
		docker, k3s socketproxy.Mode
		took        time.Duration
		want        []string // in the error
	}{
		"both well": {socketproxy.Pass, socketproxy.Pass, 0, []string{"containerd has no such container at ROOT" +
			docker + ", ROOT" + k3s}},
		"one silent": {socketproxy.Pass, socketproxy.Silent, aBudget, []string{"containerd at ROOT" + k3s +
			" did not respond within 300ms"}},
		"one refusing": {socketproxy.Pass, socketproxy.Refuse, 0, []string{"containerd at ROOT" + k3s +
			" cannot be reached: connection refused"}},
		"both fail": {socketproxy.Silent, socketproxy.Refuse, aBudget,
			[]string{"ROOT" + docker + " did not respond within 300ms"}},
		"the other fails": {socketproxy.Refuse, socketproxy.Pass, 0, []string{"containerd at ROOT" + docker +
			" cannot be reached: connection refused"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, containerds := severalContainerds(t, Options{Budget: aBudget}, docker, k3s)
				containerds[docker].Set(t, test.docker)
				containerds[k3s].Set(t, test.k3s)
				well := test.docker == socketproxy.Pass && test.k3s == socketproxy.Pass
				for range breaker.Failures {
					_, took, err := timed(t.Context(), client)
					if err == nil || took != test.took || errors.Is(err, ErrNotFound) != well {
						t.Fatalf("Confirm gives %v after %s, want %s", err, took, test.took)
					}
					for _, want := range test.want {
						if want = strings.ReplaceAll(want, "ROOT", client.Root); !strings.Contains(err.Error(), want) {
							t.Errorf("Confirm gives %v, want %q", err, want)
						}
					}
				}
				if client.Failing() == well {
					t.Errorf("the breaker is open: %v", client.Failing())
				}
			})
		})
	}
}

// If the containerd that has the container reports an error about its spec, the call ends with that error.
func TestConfirm_badSpecAtSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, containerds := severalContainerds(t, Options{Budget: aBudget}, docker, k3s)
		containerds[docker].Set(t, socketproxy.Silent)
		containerds[k3s].Put("k8s.io", "train", []byte(`{"process":`))
		for range 2 * breaker.Failures {
			if _, took, err := timed(t.Context(), client); err == nil || took > 0 || !strings.Contains(err.Error(),
				"the spec is not JSON") {
				t.Errorf("Confirm gives %v after %s", err, took)
			}
		}
	})
}

// If an address is set, the client calls no other containerd.
func TestConfirm_namedAddressOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, containerds := severalContainerds(t, Options{Budget: aBudget}, docker, k3s)
		containerds[k3s].Put("k8s.io", "train", storedspectest.TrainingSpec())
		client.Address = client.Root + docker
		if _, err := client.Confirm(t.Context(), "train", ipcLock); !errors.Is(err, ErrNotFound) ||
			!strings.HasSuffix(err.Error(), "at "+client.Address) {
			t.Errorf("Confirm gives %v", err)
		}
		if n := containerds[k3s].Accepted(); n != 0 {
			t.Errorf("%d connections to another containerd", n)
		}
	})
}

// If a socket is created later, the next call that needs it finds it.
func TestConfirm_laterSocket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, containerds := severalContainerds(t, Options{Budget: aBudget}, docker, k3s)
		containerds[k3s].Put("k8s.io", "train", storedspectest.TrainingSpec())
		must.Succeed(t, os.Remove(client.Root+k3s))
		if _, err := client.Confirm(t.Context(), "train", ipcLock); !errors.Is(err, ErrNotFound) {
			t.Errorf("Confirm gives %v", err)
		}
		must.Succeed(t, syscall.Mknod(client.Root+k3s, syscall.S_IFSOCK|0o600, 0))
		expectEdit(t, client, "train")
	})
}

func TestFindSockets(t *testing.T) {
	const usual, snap, k0s = docker, "/var/snap/microk8s/common/run/containerd.sock", "/run/k0s/containerd.sock"
	tests := []struct {
		name    string
		sockets []string
		files   []string
		link    string // to the first socket
		address string // relative to the root
		want    []string
	}{
		{name: "nothing"},
		{name: "usual", sockets: []string{usual}, want: []string{usual}},
		{name: "k3s or RKE2", sockets: []string{k3s}, want: []string{k3s}},
		{name: "MicroK8s", sockets: []string{snap}, want: []string{snap}},
		{name: "k0s", sockets: []string{k0s}, want: []string{k0s}},
		{name: "several", sockets: []string{k0s, k3s, usual}, want: []string{usual, k3s, k0s}},
		{name: "a link to another", sockets: []string{k3s}, link: usual, want: []string{usual}},
		{name: "a file is not a socket", files: []string{usual}, sockets: []string{k3s}, want: []string{k3s}},
		{name: "not there yet", files: []string{"/run/k3s/containerd/config"}},
		{name: "the address wins", sockets: []string{usual, "/opt/c.sock"}, address: "/opt/c.sock",
			want: []string{"/opt/c.sock"}},
		{name: "the address alone counts", sockets: []string{usual}, address: "/opt/c.sock"},
		{name: "the address, not there yet", files: []string{"/opt/x"}, address: "/opt/c.sock"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			root := scratch.Dir(t)
			for _, s := range test.sockets {
				scratch.Socket(t, root+s)
			}
			if test.link != "" {
				scratch.Files(t, root, map[string]string{test.link: "-> " + root + test.sockets[0]}, 0)
			}
			for _, f := range test.files {
				scratch.File(t, root+f, "", 0o600)
			}
			address := test.address
			if address != "" {
				address = root + address
			}
			got, err := findSockets(address, root)
			for i := range got {
				got[i] = strings.TrimPrefix(got[i], root)
			}
			if diff := cmp.Diff(test.want, got); diff != "" || (err == nil) != (test.want != nil) {
				t.Errorf("findSockets gives %v (-want +got):\n%s", err, diff)
			}
			if err != nil && (!errors.Is(err, ErrNoSocket) || !strings.Contains(err.Error(), "--containerd-address")) {
				t.Errorf("findSockets gives %v", err)
			}
		})
	}
}
