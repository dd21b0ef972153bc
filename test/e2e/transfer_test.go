// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
)

// pingpong is the verbs program that registers 10 MB, more than the 8 MiB that the kernel lets a process lock.
const pingpong = "/usr/bin/ibv_rc_pingpong -d rxe0 -g 1 -s 10000000 -n 2"

// transfer has one container send 10 MB messages to another and back, and returns the sender's output.
func transfer(t *testing.T, server, client string) string {
	t.Helper()
	answered := make(chan containerd.Result, 1)
	go func() {
		// Its result does not matter where the client's is bad; where the client's is good, it was good.
		result, _ := onRuntime().Shell(within(t, 2*patience), server, pingpong+" -p 18600")
		answered <- result
	}()
	out := shell(t, client, `i=0
		while [ $i -lt 100 ]; do
			out=$(`+pingpong+` -p 18600 127.0.0.1 2>&1)
			case "$out" in *"Couldn't connect"*) i=$((i+1)); sleep 0.1;; *) echo "$out"; exit;; esac
		done
		echo "no server: $out"`)
	if result := <-answered; !strings.Contains(result.Out, "iters in") {
		t.Errorf("the serving side said: %s", result.Out)
	}
	return out
}

func expectTransfer(t *testing.T, server, client string) {
	t.Helper()
	if out := transfer(t, server, client); !strings.Contains(out, "2 iters in") {
		t.Errorf("10 MB messages did not go from one container to the other:\n%s", out)
	}
}

// expectNoRegistration checks that a container cannot register 10 MB.
func expectNoRegistration(t *testing.T, id string) {
	t.Helper()
	if out := shell(t, id, pingpong+" -p 18601 2>&1"); !strings.Contains(out, "Couldn't register MR") {
		t.Errorf("registering 10 MB said %q, want Couldn't register MR", out)
	}
}
