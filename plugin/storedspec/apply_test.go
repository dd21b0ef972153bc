// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package storedspec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/rdma-spec/rdma-spec/plugin/storedspec/storedspectest"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/test/testing/expect"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/socketproxy"
)

var ipcLock = spec.Grant{IPCLock: spec.IPCLockYes}

// newClient returns a client, which is closed when the test ends. If the options set no budget, it is long enough for a
// busy machine.
func newClient(t *testing.T, o Options) *Client {
	t.Helper()
	if o.Budget == 0 {
		o.Budget = testPatience
	}
	c := New(o)
	t.Cleanup(c.Close)
	return c
}

// training returns a containerd that stores the container train, and a client of it.
func training(t *testing.T) (*storedspectest.Server, *Client) {
	t.Helper()
	server := storedspectest.NewServer(t)
	server.Put("k8s.io", "train", storedspectest.TrainingSpec())
	return server, newClient(t, Options{Address: server.Socket})
}

// expectEdit checks that a client can edit a container's spec.
func expectEdit(t *testing.T, c *Client, id string) {
	t.Helper()
	if found, err := c.Confirm(t.Context(), id, ipcLock); !found.Wrote || err != nil {
		t.Errorf("%s: Confirm gives %v, %v", id, found, err)
	}
}

// An edit changes the spec as package spec does, and writes nothing else of the container.
func TestConfirm_changesOnlySpec(t *testing.T) {
	server, client := training(t)
	was := server.Container("k8s.io", "train")
	expectEdit(t, client, "train")
	want, err := ipcLock.Apply(storedspectest.TrainingSpec(), spec.AllSets)
	must.Succeed(t, err)
	is := server.Container("k8s.io", "train")
	was.Spec.Value, was.UpdatedAt = want, is.UpdatedAt
	expect.Equal(t, "something else than the spec changed", was, is, protocmp.Transform())
}

func TestConfirm_otherNamespace(t *testing.T) {
	server := storedspectest.NewServer(t)
	for _, namespace := range []string{"k8s.io", "moby"} {
		server.Put(namespace, "train", storedspectest.TrainingSpec())
	}
	expectEdit(t, newClient(t, Options{Address: server.Socket, Namespace: "moby"}), "train")
	if !bytes.Contains(server.Spec("moby", "train"), []byte(spec.CapIPCLock)) {
		t.Error("the container of the namespace was not changed")
	}
	if !bytes.Equal(server.Spec("k8s.io", "train"), storedspectest.TrainingSpec()) {
		t.Error("the container of another namespace was changed")
	}
}

func TestConfirm_retriesAfterReading(t *testing.T) {
	unavailable := func(_ string, n int) error {
		if n == 1 {
			return status.Error(codes.Unavailable, "shutting down")
		}
		return nil
	}
	tests := []struct {
		name    string
		arrange func(*storedspectest.Server)
		gets    int
		updates int
		fails   string
	}{
		{"read refused", func(s *storedspectest.Server) { s.BeforeGet = unavailable }, 2, 1, ""},
		{"read refused again", func(s *storedspectest.Server) {
			s.BeforeGet = func(string, int) error { return unavailable("", 1) }
		}, 2, 0, " cannot be reached: shutting down"},
		{"write refused", func(s *storedspectest.Server) { s.BeforeUpdate = unavailable }, 2, 2, ""},
		{"write done, its answer lost", func(s *storedspectest.Server) { s.AfterUpdate = unavailable }, 2, 1, ""},
		{"written by somebody else meanwhile", func(s *storedspectest.Server) {
			s.BeforeUpdate = func(id string, n int) error {
				if n == 1 {
					s.SetSpec("k8s.io", id, bytes.Replace(s.Spec("k8s.io", id), []byte("train.py"), []byte("other.py"), 1))
				}
				return unavailable(id, n)
			}
		}, 2, 2, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server, client := training(t)
			test.arrange(server)
			found, err := client.Confirm(t.Context(), "train", ipcLock)
			if well := test.fails == ""; found.Wrote != well || (err == nil) != well ||
				!strings.Contains(fmt.Sprint(err), test.fails) {
				t.Errorf("Confirm gives %v, %v", found, err)
			}
			expect.Equal(t, "gets and updates", []int{test.gets, test.updates}, []int{server.Gets("train"),
				server.Updates("train")})
			text := server.Spec("k8s.io", "train")
			if n := bytes.Count(text, []byte(spec.CapIPCLock)); test.fails == "" && n != len(spec.AllSets) {
				t.Errorf("%s stands %d times in the spec", spec.CapIPCLock, n)
			}
			if other := strings.Contains(test.name, "somebody"); other != bytes.Contains(text, []byte("other.py")) {
				t.Error("the other's write was undone")
			}
		})
	}
}

func TestConfirm_manyAtOnce(t *testing.T) {
	const count, clients = 200, 16
	server := storedspectest.NewServer(t)
	ids := make(chan string, count)
	for i := range count {
		id := fmt.Sprintf("container-%d", i)
		server.Put("k8s.io", id, storedspectest.TrainingSpec())
		ids <- id
	}
	close(ids)
	proxy := socketproxy.New(t, server.Socket)
	client := newClient(t, Options{Address: proxy.Socket})
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for id := range ids {
				if found, err := client.Confirm(context.Background(), id, ipcLock); !found.Wrote || err != nil {
					t.Errorf("%s: Confirm gives %v, %v", id, found, err)
				}
			}
		})
	}
	all.Wait()
	want, err := ipcLock.Apply(storedspectest.TrainingSpec(), spec.AllSets)
	must.Succeed(t, err)
	for i := range count {
		id := fmt.Sprintf("container-%d", i)
		if got := server.Spec("k8s.io", id); !bytes.Equal(want, got) {
			t.Errorf("%s has not the spec that it should have: %s", id, got)
		}
		if n := server.Updates(id); n != 1 {
			t.Errorf("%s was written %d times", id, n)
		}
	}
	if n := proxy.Accepted(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

func TestRead(t *testing.T) {
	_, client := training(t)
	text, err := client.Read(t.Context(), "train")
	if err != nil || !bytes.Equal(text, storedspectest.TrainingSpec()) {
		t.Errorf("Read gives %q, %v", text, err)
	}
	if _, err := client.Read(t.Context(), "nobody"); !errors.Is(err, ErrNotFound) {
		t.Errorf("Read of what is not there gives %v", err)
	}
}

// Confirm reports what the spec granted before, and adds what it lacked of the grant, except devices.
func TestConfirmFinds(t *testing.T) {
	server := storedspectest.NewServer(t)
	low, err := spec.WithoutRlimit(storedspectest.TrainingSpec(), spec.RlimitMemlock)
	if err == nil {
		low, err = spec.Grant{Memlock: 1 << 20}.Apply(low, spec.AllSets)
	}
	must.Succeed(t, err)
	server.Put("k8s.io", "train", low)
	client := newClient(t, Options{Address: "unix://" + server.Socket})
	grant := spec.Grant{Memlock: spec.Unlimited, IPCLock: spec.IPCLockYes,
		Devices: []hca.Device{{Path: "/dev/infiniband/uverbs9"}}}
	limit := func(l spec.Limit) spec.Rlimit { return spec.Rlimit{Soft: l, Hard: l} }
	for _, want := range []Found{{limit(1 << 20), true, true}, {limit(spec.Unlimited), true, false}} {
		if found, err := client.Confirm(t.Context(), "train", grant); found != want || err != nil {
			t.Errorf("Confirm gives %+v, %v, want %+v", found, err, want)
		}
	}
	if text := string(server.Spec("k8s.io", "train")); strings.Contains(text, "uverbs9") || server.Updates("train") != 1 {
		t.Errorf("a device was added, or the spec written %d times: %s", server.Updates("train"), text)
	}
}

// An error about one container is not a failure of containerd, so it must not affect other containers.
func TestConfirm_faultsOfOneContainer(t *testing.T) {
	server := storedspectest.NewServer(t)
	server.Put("k8s.io", "sound", storedspectest.TrainingSpec())
	server.Put("moby", "elsewhere", storedspectest.TrainingSpec())
	server.Put("k8s.io", "no-json", []byte(`{"process":`))
	server.Put("k8s.io", "no-object", []byte(`{"process":{"capabilities":[]}}`))
	server.Put("k8s.io", "empty", nil)
	server.PutContainer("k8s.io", &containers.Container{ID: "no-spec"})
	server.PutContainer("k8s.io", &containers.Container{ID: "foreign",
		Spec: &anypb.Any{TypeUrl: "types.example/vm", Value: []byte(`{}`)}})
	client := newClient(t, Options{Address: server.Socket})
	tests := []struct {
		id, want string
		is       error
	}{
		{"nobody", "stored spec of container nobody: containerd has no such container", ErrNotFound},
		{"elsewhere", "no such container", ErrNotFound},
		{"no-json", "stored spec of container no-json: the spec is not JSON: the text is truncated", nil},
		{"no-object", "process.capabilities is not a JSON object", nil},
		{"empty", "the spec is empty", nil},
		{"no-spec", `its type is "" instead of ` + specType + " (an OCI runtime spec)", nil},
		{"foreign", `its type is "types.example/vm" instead of ` + specType + " (an OCI runtime spec)", nil},
	}
	for _, test := range tests {
		before := server.Container("k8s.io", test.id)
		found, err := client.Confirm(t.Context(), test.id, ipcLock)
		if found.Wrote || err == nil || !strings.Contains(err.Error(), test.want) || test.is != nil && !errors.Is(err, test.is) {
			t.Errorf("%s: Confirm gives %v, %v", test.id, found, err)
		}
		if server.Updates(test.id) != 0 || !proto.Equal(before, server.Container("k8s.io", test.id)) {
			t.Errorf("%s was written", test.id)
		}
	}
	expectEdit(t, client, "sound")
}

// mixedUp is a containerd that responds with a different container than the requested one.
type mixedUp struct{ grpc.ClientConnInterface }

func (mixedUp) Invoke(_ context.Context, _ string, _, reply any, _ ...grpc.CallOption) error {
	reply.(*containers.GetContainerResponse).Container = &containers.Container{
		ID: "other", Spec: &anypb.Any{TypeUrl: storedspectest.SpecType, Value: storedspectest.TrainingSpec()},
	}
	return nil
}

func TestEdit_refusesOtherSpec(t *testing.T) {
	e := edit{container: "train", grant: ipcLock}
	for name, apply := range map[string]work{"confirm": e.confirm, "applyRunning": e.applyRunning} {
		if done, err := apply(t.Context(), mixedUp{}, result{}); err == nil || !atFault(err) || done.found.Wrote {
			t.Errorf("%s gives %v, wrote: %v", name, err, done.found.Wrote)
		}
	}
}

// An edit that took long succeeds only if the container's task did not exist afterwards. A fast edit costs only a read
// and a write.
func TestConfirm_taskAlreadyStarted(t *testing.T) {
	for name, test := range map[string]struct {
		takes   time.Duration
		started bool
		looks   int
		want    error
	}{
		"as usual":              {0, false, 0, nil},
		"slow":                  {usualDuration, false, 1, nil},
		"slow, and it runs":     {usualDuration, true, 1, ErrStarted},
		"slow, nothing changed": {usualDuration, true, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, server, _ := inMemory(t, Options{})
				unchanged := test.started && test.looks == 0
				if unchanged {
					expectEdit(t, client, "train")
				}
				server.BeforeGet = func(string, int) error {
					time.Sleep(test.takes)
					if test.started {
						server.StartTask("train")
					}
					return nil
				}
				found, err := client.Confirm(t.Context(), "train", ipcLock)
				if !errors.Is(err, test.want) || err == nil && found.Wrote == unchanged || client.Failing() {
					t.Errorf("Confirm gives %v, %v, want %v", found, err, test.want)
				}
				if looks := server.Looks("train"); looks != test.looks {
					t.Errorf("%d looks at the task, want %d", looks, test.looks)
				}
			})
		})
	}
}

// If the request for the task fails, the edit has not succeeded.
func TestConfirm_unknownTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server, _ := inMemory(t, Options{})
		server.NoTasks = status.Error(codes.Internal, "shutting down")
		server.AfterUpdate = func(string, int) error {
			time.Sleep(usualDuration)
			return nil
		}
		if found, err := client.Confirm(t.Context(), "train", ipcLock); err == nil ||
			!strings.Contains(err.Error(), "shutting down") {
			t.Errorf("Confirm gives %v, %v", found, err)
		}
	})
}
