// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// A process forks while it is repaired: none is left low.
func TestRepairOfAForkingProcess(t *testing.T) {
	pod := runPod(t, containerd.Pod{Name: "forking"})
	id := runContainer(t, pod, containerd.Container{Name: "main", Devices: containerd.Verbs(0),
		Args: []string{"/bin/busybox", "sh", "-c", `
		i=0
		while [ ! -e /stop ] && [ $i -lt 20000 ]; do
			i=$((i+1))
			sleep 100000 &
			[ $i -eq 50 ] && echo > /some
		done
		echo > /all
		wait`}})
	awaitShell(t, id, "ls /some 2>/dev/null", "/some")
	before := len(members(t, id))
	stdout, stderr, status := tool(t, "repair")
	if status != 0 {
		t.Errorf("exit status %d: %s%s", status, stdout, stderr)
	}
	after := len(members(t, id))
	shell(t, id, "touch /stop")
	awaitShell(t, id, "ls /all 2>/dev/null", "/all")
	all := members(t, id)
	left := len(leftLow(all))
	t.Logf("%d processes before it was repaired, %d after, %d now, %d left low; %s", before, after, len(all), left,
		strings.TrimSpace(stdout))
	if left > 0 {
		t.Errorf("%d of %d processes are left low", left, len(all))
	}
	if after == before || len(all) == after {
		t.Error("it did not fork all the while: the test tests nothing")
	}
}

// Few process IDs, which short-lived processes inside and outside of a container reuse all the time, while the
// container is repaired again and again: no stranger's limit is ever touched.
func TestRepairWithRecycledPIDs(t *testing.T) {
	setSysctl(t, "kernel/pid_max", "700")
	pod := runPod(t, containerd.Pod{Name: "churning"})
	// One process lowers its own limits again and again, so that there is always something to raise, and so does each
	// short-lived child.
	runContainer(t, pod, containerd.Container{Name: "main", Devices: containerd.Verbs(0),
		Args: []string{"/bin/busybox", "sh", "-c",
			`(while :; do ulimit -l 64; sleep 0.1; done) &
		/bin/busybox sh -c 'while :; do for i in 1 2 3 4; do (ulimit -S -l 64; exec sleep 0.02) & done; wait; done'`}})
	// A stranger prints its limit when it ends, whatever happened to it before.
	folder := scratch.Folder(t)
	strangers := exec.Command("/bin/busybox", "sh", "-c",
		`ulimit -S -l 4096; while :; do for i in 1 2 3 4; do sh -c 'sleep 0.02; echo $$ $(ulimit -S -l) $(ulimit -H -l)' & done; wait; done`)
	said, err := os.Create(filepath.Join(folder, "said"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = said.Close() }() // it was only written
	strangers.Stdout = said
	if err := strangers.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = strangers.Process.Kill() // it runs
		_ = strangers.Wait()         // killed
	}()
	// strangersSaid returns how many there were, and how many process IDs they had among them.
	strangersSaid := func() (count, ids int) {
		text := scratch.Read(t, said.Name())
		seen := map[string]bool{}
		for line := range strings.Lines(text) {
			fields := strings.Fields(line)
			if len(fields) != 3 {
				continue // it is being written
			}
			count++
			seen[fields[0]] = true
			if fields[1] != "4096" || fields[2] != "8192" {
				t.Errorf("a stranger's limit was touched: %s", line)
			}
		}
		return count, len(seen)
	}
	raised, repairs, count, ids := 0, 0, 0, 0
	await.That(t, 3*patience, "process IDs are recycled, and processes raised", func() bool {
		stdout, _, _ := tool(t, "repair", "default/churning") // whether the last child was raised before it ended is chance
		if _, after, found := strings.Cut(stdout, "unlimited: "); found {
			n, _ := strconv.Atoi(strings.Fields(after)[0])
			raised += n
		}
		repairs++
		count, ids = strangersSaid()
		return repairs >= 2 && raised > 0 && count >= ids+200
	})
	t.Logf("%d repairs raised %d short-lived processes beside %d strangers that had %d process IDs among them",
		repairs, raised, count, ids)
}
