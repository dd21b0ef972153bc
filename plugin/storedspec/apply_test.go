// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package storedspec

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/rdma-spec/rdma-spec/plugin/storedspec/storedspectest"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/test/testing/socketproxy"
)

var ipcLock = spec.Grant{IPCLock: spec.IPCLockYes}

// newClient gives a client that is closed when the test ends. Where the budget is not what is tested, a busy machine
// has time.
func newClient(t *testing.T, o Options) *Client {
	t.Helper()
	if o.Budget == 0 {
		o.Budget = testPatience
	}
	c := New(o)
	t.Cleanup(c.Close)
	return c
}

// parse reads JSON with numbers as they are written.
func parse(t *testing.T, text []byte) map[string]any {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var value map[string]any
	if err := decoder.Decode(&value); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return value
}

// capabilities takes process.capabilities out of a parsed spec.
func capabilities(t *testing.T, parsed map[string]any) map[string]any {
	t.Helper()
	process, _ := parsed["process"].(map[string]any)
	c, ok := process["capabilities"].(map[string]any)
	if !ok {
		t.Fatalf("no process.capabilities in %v", parsed)
	}
	delete(process, "capabilities")
	return c
}

func TestApplyChangesCapabilitiesOnly(t *testing.T) {
	server := storedspectest.NewServer(t)
	before := storedspectest.TrainingSpec()
	server.Put("k8s.io", "train", before)
	was := server.Container("k8s.io", "train")
	client := newClient(t, Options{Address: server.Socket})

	found, err := client.Confirm(t.Context(), "train", ipcLock)
	if !found.Wrote || err != nil {
		t.Fatalf("Confirm gives %v, %v", found, err)
	}
	is := server.Container("k8s.io", "train")
	after := is.GetSpec().GetValue()

	want, got := parse(t, before), parse(t, after)
	wantSets, gotSets := capabilities(t, want), capabilities(t, got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("something else than process.capabilities changed (-before +after):\n%s", diff)
	}
	for _, set := range spec.AllSets {
		had, _ := wantSets[set].([]any)
		wantSets[set] = append(slices.Clone(had), spec.CapIPCLock)
	}
	if diff := cmp.Diff(wantSets, gotSets); diff != "" {
		t.Errorf("process.capabilities (-want +got):\n%s", diff)
	}
	if n := bytes.Count(after, []byte(`"limit":18446744073709551615,"share":1.50e3,"text":"<&> \u00e9"`)); n != 4 {
		t.Errorf("%d of 4 unknown members are as they were written", n)
	}
	if diff := cmp.Diff(was, is, protocmp.Transform(), protocmp.IgnoreFields(&containers.Container{}, "updated_at"),
		protocmp.IgnoreFields(&anypb.Any{}, "value")); diff != "" {
		t.Errorf("something else than the spec changed (-before +after):\n%s", diff)
	}
	if !proto.Equal(was.GetExtensions()["io.cri-containerd.container.metadata"],
		is.GetExtensions()["io.cri-containerd.container.metadata"]) {
		t.Error("the extension changed")
	}
}

func TestApplyTwiceWritesOnce(t *testing.T) {
	server := storedspectest.NewServer(t)
	server.Put("k8s.io", "train", storedspectest.TrainingSpec())
	client := newClient(t, Options{Address: "unix://" + server.Socket})
	for i, want := range []bool{true, false, false} {
		if found, err := client.Confirm(t.Context(), "train", ipcLock); found.Wrote != want || err != nil {
			t.Errorf("Apply %d gives %v, %v", i+1, found, err)
		}
	}
	if n := server.Updates("train"); n != 1 {
		t.Errorf("%d updates", n)
	}
}

func TestApplyLeavesAloneWhoDroppedAll(t *testing.T) {
	server := storedspectest.NewServer(t)
	const dropped = `{"ociVersion":"1.2.0","process":{"capabilities":{"bounding":["CAP_NET_BIND_SERVICE"]}}}`
	server.Put("k8s.io", "train", []byte(dropped))
	client := newClient(t, Options{Address: server.Socket})
	found, err := client.Confirm(t.Context(), "train", spec.Grant{IPCLock: spec.IPCLockUnlessDropped})
	if found.Wrote || err != nil || server.Updates("train") != 0 || string(server.Spec("k8s.io", "train")) != dropped {
		t.Errorf("Confirm gives %v, %v after %d updates: %s", found, err, server.Updates("train"),
			server.Spec("k8s.io", "train"))
	}
}

func TestApplyInAnotherNamespace(t *testing.T) {
	server := storedspectest.NewServer(t)
	for _, namespace := range []string{"k8s.io", "moby"} {
		server.Put(namespace, "train", storedspectest.TrainingSpec())
	}
	client := newClient(t, Options{Address: server.Socket, Namespace: "moby"})
	if found, err := client.Confirm(t.Context(), "train", ipcLock); !found.Wrote || err != nil {
		t.Fatalf("Confirm gives %v, %v", found, err)
	}
	if !bytes.Contains(server.Spec("moby", "train"), []byte(spec.CapIPCLock)) {
		t.Error("the container of the namespace was not changed")
	}
	if !bytes.Equal(server.Spec("k8s.io", "train"), storedspectest.TrainingSpec()) {
		t.Error("the container of another namespace was changed")
	}
}

func TestApplyTriesAgainAfterReading(t *testing.T) {
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
	}{
		{"read refused", func(s *storedspectest.Server) { s.BeforeGet = unavailable }, 2, 1},
		{"write refused", func(s *storedspectest.Server) { s.BeforeUpdate = unavailable }, 2, 2},
		{"write done, its answer lost", func(s *storedspectest.Server) { s.AfterUpdate = unavailable }, 2, 1},
		{"written by somebody else meanwhile", func(s *storedspectest.Server) {
			s.BeforeUpdate = func(id string, n int) error {
				if n == 1 {
					s.SetSpec("k8s.io", id, bytes.Replace(s.Spec("k8s.io", id), []byte("train.py"), []byte("other.py"), 1))
				}
				return unavailable(id, n)
			}
		}, 2, 2},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := storedspectest.NewServer(t)
			server.Put("k8s.io", "train", storedspectest.TrainingSpec())
			test.arrange(server)
			client := newClient(t, Options{Address: server.Socket})
			found, err := client.Confirm(t.Context(), "train", ipcLock)
			if !found.Wrote || err != nil {
				t.Errorf("Confirm gives %v, %v", found, err)
			}
			if diff := cmp.Diff([]int{test.gets, test.updates}, []int{server.Gets("train"),
				server.Updates("train")}); diff != "" {
				t.Errorf("gets and updates (-want +got):\n%s", diff)
			}
			text := server.Spec("k8s.io", "train")
			if n := bytes.Count(text, []byte(spec.CapIPCLock)); n != len(spec.AllSets) {
				t.Errorf("%s stands %d times in the spec", spec.CapIPCLock, n)
			}
			if other := strings.Contains(test.name, "somebody"); other != bytes.Contains(text, []byte("other.py")) {
				t.Error("the other's write was undone")
			}
		})
	}
}

func TestApplyTriesOnceAgainOnly(t *testing.T) {
	server := storedspectest.NewServer(t)
	server.BeforeGet = func(string, int) error { return status.Error(codes.Unavailable, "shutting down") }
	client := newClient(t, Options{Address: server.Socket})
	if _, err := client.Confirm(t.Context(), "train", ipcLock); err == nil || !strings.Contains(err.Error(),
		" cannot be reached: shutting down") {
		t.Errorf("Confirm gives %v", err)
	}
	if n := server.Gets("train"); n != 2 {
		t.Errorf("%d reads", n)
	}
}

func TestApplyManyAtOnce(t *testing.T) {
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
	if err != nil {
		t.Fatal(err)
	}
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
	server := storedspectest.NewServer(t)
	server.Put("k8s.io", "train", storedspectest.TrainingSpec())
	client := newClient(t, Options{Address: server.Socket})
	text, err := client.Read(t.Context(), "train")
	if err != nil || !bytes.Equal(text, storedspectest.TrainingSpec()) {
		t.Errorf("Read gives %q, %v", text, err)
	}
	if _, err := client.Read(t.Context(), "nobody"); !errors.Is(err, ErrNotFound) {
		t.Errorf("Read of what is not there gives %v", err)
	}
}
