// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"flag"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
)

// pingpong is a verbs program that registers 10 MB, which is more than the kernel's default memlock of 8 MiB.
const pingpong = "/usr/bin/ibv_rc_pingpong -d rxe0 -g 1 -s 10000000 -n 2"

// transfer has one container send 10 MB messages to another one and back, and returns the sender's output.
func transfer(t *testing.T, server, client string) string {
	t.Helper()
	answered := make(chan containerd.Result, 1)
	go func() {
		// The server's result is not needed: if the client succeeds, so did the server.
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

var server = flag.String("server", "", "address of the other node, if the container of TestBetweenNodes is the client")

// TestBetweenNodes runs on both nodes of a pair at once, which test/pair boots. In a container that was created before
// the plugin was started, ib_write_bw and libfabric cannot register their memory. With the plugin, they transfer it
// from a container on one node to one on the other.
func TestBetweenNodes(t *testing.T) {
	pod := runPod(t, containerd.Pod{})
	low := runContainer(t, pod, containerd.Container{Name: "low", Devices: containerd.Verbs(0)})
	if out := writeBandwidth(t, low, "18515"); !strings.Contains(out, "Couldn't allocate MR") {
		t.Errorf("without the plugin ib_write_bw says\n%s", out)
	}
	// The client finds that it cannot register its memory, so the server waits for it in vain.
	if out := fabricPingpong(t, low, "18517", time.Minute); *server != "" && !strings.Contains(out,
		"Cannot allocate memory") {
		t.Errorf("without the plugin fi_pingpong says\n%s", out)
	}
	startPlugin(t, "{}")
	raised := runContainer(t, pod, containerd.Container{Name: "raised", Devices: containerd.Verbs(0)})
	out := writeBandwidth(t, raised, "18516")
	if !strings.Contains(out, "\n 8388608    5 ") {
		t.Errorf("with the plugin ib_write_bw says\n%s", out)
	}
	t.Logf("with the plugin:\n%s", out)
	out = fabricPingpong(t, raised, "18518", patience)
	if !regexp.MustCompile(`(?m)^8m +3 `).MatchString(out) {
		t.Errorf("with the plugin fi_pingpong says\n%s", out)
	}
	t.Logf("fi_pingpong with the plugin:\n%s", out)
}

// writeBandwidth has ib_write_bw write messages of 8 MiB, for which it registers 16 MiB, and returns its output. A
// client retries until it reaches the server.
func writeBandwidth(t *testing.T, id, port string) string {
	t.Helper()
	return shell(t, id, `until out=$(ib_write_bw -d rxe0 -x 1 -s 8M -n 5 -F -p `+port+` `+*server+
		` 2>&1); [ "${out#*"Couldn't connect"}" = "$out" ]; do sleep 0.2; done; echo "$out"`)
}

// fabricPingpong has libfabric, which MPI can use, send messages of 8 MiB in both directions over verbs, and returns
// its output. A client retries until it reaches the server. most is the timeout.
func fabricPingpong(t *testing.T, id, port string, most time.Duration) string {
	t.Helper()
	ports := "-B " + port
	if *server != "" {
		ports = "-P " + port + " " + *server
	}
	return shell(t, id, `for i in 1 2 3 4 5 6 7 8 9 10; do out=$(timeout `+fmt.Sprint(most.Seconds())+
		` fi_pingpong -p verbs -e msg -I 3 -S 8388608 `+ports+
		` 2>&1); [ "${out#*"onnection refused"}" = "$out" ] && break; sleep 1; done; echo "$out"`)
}
