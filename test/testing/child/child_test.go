// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package child

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/test/testing/await"
)

// asParent is set where this test program starts a child, and waits to be killed.
const asParent = "CHILD_TEST_PARENT"

// The first thread of a process never ends: it is kept for main.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	if os.Getenv(asParent) == "" {
		os.Exit(m.Run())
	}
	shell := exec.Command("sh", "-c", "read line; echo $line; exec sleep 1000")
	in, inErr := shell.StdinPipe()
	out, outErr := shell.StdoutPipe()
	started, ended := make(chan error), make(chan int)
	go func() {
		runtime.LockOSThread() // never unlocked: this thread ends with the goroutine
		started <- Start(shell)
		ended <- unix.Gettid()
	}()
	err := errors.Join(inErr, outErr, <-started)
	for thread := <-ended; unix.Tgkill(os.Getpid(), thread, 0) == nil; {
		runtime.Gosched()
	}
	_, writeErr := fmt.Fprintln(in, "alive")
	said, readErr := bufio.NewReader(out).ReadString('\n')
	fmt.Println(shell.Process.Pid, said == "alive\n", errors.Join(err, writeErr, readErr))
	_, _ = os.Stdin.Read(make([]byte, 1))
}

// A child outlives the thread that called Start, and ends with the process.
func TestChildEndsWithItsParent(t *testing.T) {
	parent := exec.Command("/proc/self/exe")
	parent.Env = append(os.Environ(), asParent+"=1")
	if _, err := parent.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Scan()
	var pid int
	if _, err := fmt.Sscanf(lines.Text(), "%d true <nil>", &pid); err != nil {
		t.Fatalf("the parent said %q: the child has ended with the thread that called Start", lines.Text())
	}
	child, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = unix.PidfdSendSignal(child, unix.SIGKILL, nil, 0) // it has ended
		_ = unix.Close(child)
	}()
	hasEnded := func() bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(child), Events: unix.POLLIN}}, 0)
		return err == nil && n == 1
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait() // killed
	await.That(t, await.Patience, "the child ends", hasEnded)
}
