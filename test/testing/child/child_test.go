// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package child

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

const (
	// asParent is an environment variable. If it is set, this test program starts a child and waits to be killed.
	asParent = "CHILD_TEST_PARENT"
	// asSpinners is an environment variable that names a file. If it is set, this test program starts many threads, each
	// of which increments its counter in that file forever.
	asSpinners = "CHILD_TEST_SPINNERS"
)

// init reserves the first thread for the main goroutine: the first thread never ends, and TestMain needs a thread that
// ends.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	if name := os.Getenv(asSpinners); name != "" {
		spin(name)
	}
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

// A child outlives the thread that called Start, but ends with the process.
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
		_ = unix.PidfdSendSignal(child, unix.SIGKILL, nil, 0) // fails if the child has ended
		_ = unix.Close(child)
	}()
	hasEnded := func() bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(child), Events: unix.POLLIN}}, 0)
		return err == nil && n == 1
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait() // returns an error, since the parent was killed
	await.That(t, await.Timeout, "the child ends", hasEnded)
}

const spinners = 50

// counters reads the counters in a file that processes share.
func counters(name string) ([]uint64, error) {
	file, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	memory, err := unix.Mmap(int(file.Fd()), 0, 8*spinners, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*uint64)(unsafe.Pointer(&memory[0])), spinners), file.Close()
}

func spin(name string) {
	runtime.GOMAXPROCS(spinners)
	all, err := counters(name)
	if err != nil {
		panic(err)
	}
	for i := range all {
		go func() {
			for {
				atomic.AddUint64(&all[i], 1)
			}
		}()
	}
	select {}
}

// After Freeze, no thread of the process continues, whichever thread received the signal.
func TestFreeze(t *testing.T) {
	name := filepath.Join(scratch.Dir(t), "counters")
	scratch.File(t, name, string(make([]byte, 8*spinners)), 0o600)
	all, err := counters(name)
	if err != nil {
		t.Fatal(err)
	}
	spinning := exec.Command("/proc/self/exe")
	spinning.Env = append(os.Environ(), asSpinners+"="+name)
	if err := Start(spinning); err != nil {
		t.Fatal(err)
	}
	sum := func() (sum uint64) {
		for i := range all {
			sum += atomic.LoadUint64(&all[i])
		}
		return sum
	}
	await.That(t, await.Timeout, "it counts", func() bool { return sum() > 0 })
	for range 5 {
		if err := Freeze(spinning.Process.Pid); err != nil {
			t.Fatal(err)
		}
		before := sum()
		<-time.After(10 * time.Millisecond)
		if after := sum(); after != before {
			t.Fatalf("a frozen process counts from %d to %d", before, after)
		}
		if err := spinning.Process.Signal(unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		await.That(t, await.Timeout, "it goes on", func() bool { return sum() > before })
	}
	if err := spinning.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	await.That(t, await.Timeout, "ended, and said so", func() bool { return Freeze(spinning.Process.Pid) != nil })
	_ = spinning.Wait() // returns an error, since the process was killed
}
