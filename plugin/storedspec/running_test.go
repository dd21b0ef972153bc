// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package storedspec

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/rdma-spec/rdma-spec/plugin/breaker"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec/storedspectest"
	"github.com/rdma-spec/rdma-spec/spec"
)

const small = `{"process":{"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":8388608,"soft":8388608}]},"linux":{"resources":{"memory":{"limit":1000}}}}`

var unlimited = spec.Grant{Memlock: spec.Unlimited}

// resize writes a memory limit into a spec that it read earlier, like CRI.
func resize(server *storedspectest.Server, read []byte, limit int) {
	server.SetSpec("k8s.io", "train", bytes.Replace(read, []byte(`"limit":1000`),
		fmt.Appendf(nil, `"limit":%d`, limit), 1))
}

func TestApplyRunning(t *testing.T) {
	const resized = `"limit":2000`
	tests := []struct {
		name    string
		arrange func(*storedspectest.Server)
		want    string
		gets    int
		updates int
	}{
		{"undisturbed", func(*storedspectest.Server) {}, `"limit":1000`, 3, 1},
		{"resized between read and write", func(s *storedspectest.Server) {
			s.BeforeGet = func(_ string, n int) error {
				if n == 2 {
					resize(s, s.Spec("k8s.io", "train"), 2000)
				}
				return nil
			}
		}, resized, 5, 1},
		{"written over by a resize that had read before", func(s *storedspectest.Server) {
			s.AfterUpdate = func(_ string, n int) error {
				if n == 1 {
					resize(s, []byte(small), 2000)
				}
				return nil
			}
		}, resized, 5, 2},
		{"resized after the write", func(s *storedspectest.Server) {
			s.AfterUpdate = func(string, int) error {
				resize(s, s.Spec("k8s.io", "train"), 2000)
				return nil
			}
		}, resized, 3, 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := storedspectest.NewServer(t)
			server.Put("k8s.io", "train", []byte(small))
			test.arrange(server)
			client := newClient(t, Options{Address: server.Socket})
			changed, err := client.ApplyRunning(t.Context(), "train", unlimited)
			if !changed || err != nil {
				t.Fatalf("ApplyRunning gives %v, %v", changed, err)
			}
			text := server.Spec("k8s.io", "train")
			if memlock, _, err := spec.Memlock(text); err != nil || memlock.Soft != spec.Unlimited {
				t.Errorf("memlock is %v, %v", memlock, err)
			}
			if !bytes.Contains(text, []byte(test.want)) {
				t.Errorf("the resize was undone: %s", text)
			}
			if gets, updates := server.Gets("train"), server.Updates("train"); gets != test.gets || updates != test.updates {
				t.Errorf("%d reads and %d writes, want %d and %d", gets, updates, test.gets, test.updates)
			}
			gets := server.Gets("train")
			if changed, err := client.ApplyRunning(t.Context(), "train", unlimited); changed || err != nil {
				t.Errorf("the second time: ApplyRunning gives %v, %v", changed, err)
			}
			if server.Gets("train") != gets+1 || server.Updates("train") != test.updates {
				t.Error("a spec that has it already was read more than once, or written")
			}
		})
	}
}

func TestApplyRunningGivesWay(t *testing.T) {
	for _, disturb := range []string{"every read", "every write"} {
		t.Run(disturb, func(t *testing.T) {
			server := storedspectest.NewServer(t)
			server.Put("k8s.io", "train", []byte(small))
			last := 1000
			again := func(string, int) error {
				last++
				resize(server, []byte(small), last)
				return nil
			}
			if disturb == "every read" {
				server.BeforeGet = again
			} else {
				server.AfterUpdate = again
			}
			client := newClient(t, Options{Address: server.Socket})
			for range 2 * breaker.Failures { // such errors do not count as failures of containerd
				gets := server.Gets("train")
				changed, err := client.ApplyRunning(t.Context(), "train", unlimited)
				if changed || !errors.Is(err, ErrContended) {
					t.Errorf("ApplyRunning gives %v, %v", changed, err)
				}
				if n := server.Gets("train") - gets; n != 2*runningRounds+1 {
					t.Errorf("%d reads", n)
				}
			}
			if want := fmt.Appendf(nil, `"limit":%d`, last); !bytes.Contains(server.Spec("k8s.io", "train"), want) {
				t.Errorf("the last resize was undone: %s", server.Spec("k8s.io", "train"))
			}
		})
	}
}
