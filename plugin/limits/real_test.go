// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
)

// The soft limit of the test's processes, and the limit to which it is raised. Any user can raise a soft limit up to
// the hard limit.
const softLow, softWanted = spec.Limit(64 << 10), spec.Limit(256 << 10)

// sessions is the real kernel, except that containers are determined by session instead of by cgroup.
type sessions struct {
	Kernel
	containers map[int]string // by session
}

func (s sessions) Read(pid int, name string) ([]byte, error) {
	if name != "cgroup" {
		return s.Kernel.Read(pid, name)
	}
	session, err := unix.Getsid(pid)
	if err != nil {
		return nil, err
	}
	return []byte("0::/kubepods/" + s.containers[session]), nil
}

// hang is a shell command that waits until the test ends, even if the test is killed: it reads the script's standard
// input.
const hang = "cat <&3"

// start runs a script with a low soft limit in its own session until the test ends, and waits for the script's first
// line.
func start(t *testing.T, script string) (pid int, lines *bufio.Scanner) {
	t.Helper()
	command := exec.Command("sh", "-c", fmt.Sprintf("ulimit -S -l %d || exit 1\nexec 3<&0\n", softLow>>10)+script)
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if _, err := command.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := command.StdoutPipe()
	must.Succeed(t, err)
	must.Succeed(t, command.Start())
	t.Cleanup(func() {
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL) // it may have ended already
		_ = command.Wait()                                      // killed
	})
	lines = bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatal("the script said nothing")
	}
	return command.Process.Pid, lines
}

// recycling is a kernel that reuses the ID of each process for an unrelated process just before the limit is set.
type recycling struct {
	sessions
	t        *testing.T
	hit      int
	stranger int         // the process that got the last ID
	had      spec.Rlimit // the limit that it had then
	threads  int         // how many of these were threads of this process
}

func (r *recycling) Set(pid int, limit spec.Rlimit) (spec.Rlimit, error) {
	recycle := r.containers[pid] == idA
	if recycle {
		r.recycle(pid)
	}
	former, err := r.sessions.Set(pid, limit)
	if recycle && err == nil && former == r.had {
		r.hit++
	}
	return former, err
}

// Pause does nothing, because no process forks here.
func (*recycling) Pause(context.Context, time.Duration) {}

// recycle ends a process and starts another one with its ID. A new thread of this process may get the ID first: until
// it ends, it serves as the unrelated process.
func (r *recycling) recycle(pid int) {
	delete(r.containers, pid)
	must.Succeed(r.t, syscall.Kill(pid, syscall.SIGKILL))
	if _, err := syscall.Wait4(pid, nil, 0, nil); err != nil {
		r.t.Fatal(err)
	}
	r.stranger = 0
	for tries := 1; r.stranger != pid; tries++ {
		if tries > 100 {
			r.t.Fatalf("ID %d could not be had again", pid)
		}
		// The kernel assigns the ID after this one next.
		must.Succeed(r.t, os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(pid-1)), 0o644))
		r.stranger, _ = start(r.t, "echo; exec "+hang) // exec, because a shell's child could get the ID instead
		if of, err := (&Processes{r.sessions}).processOf(pid); err == nil && of == os.Getpid() {
			r.stranger = of
			r.threads++
			break
		}
	}
	had, err := (&Processes{r.sessions}).Memlock(r.stranger)
	must.Succeed(r.t, err)
	r.had = had
}

// older is a kernel without pidfd_open, before Linux 5.3.
type older struct{ proc }

func (o older) Open(pid int) (Holder, error) { return o.openDir(pid) }

var realKernels = map[string]Kernel{"today's": proc{"/proc"}, "before Linux 5.3": older{proc{"/proc"}}}

// The real kernel reuses process IDs just before the limit is set. No unrelated process keeps a raised limit.
func TestRaise_recycledIDsOfRealKernel(t *testing.T) {
	inOwnPIDNamespace(t, func(t *testing.T) {
		must.Succeed(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("proc", "/proc",
			"proc", 0, ""))
		if err := New("/").Visible(); !errors.Is(err, ErrHidden) {
			t.Errorf("in a PID namespace of its own, other containers' processes are said to be visible: %v", err)
		}
		for name, kernel := range realKernels {
			r := &recycling{sessions: sessions{kernel, map[int]string{}}, t: t}
			p := &Processes{r}
			const times = 20 // each one hits an unrelated process
			for range times {
				pid, _ := start(t, "echo; exec "+hang)
				r.containers[pid] = idA
				if got := p.Raise(t.Context(), map[string]spec.Limit{idA: softWanted})[idA]; got != (Outcome{}) {
					t.Fatalf("%s: %+v", name, got)
				}
				if limit, err := p.Memlock(r.stranger); err != nil || limit != r.had {
					t.Fatalf("%s: the stranger has %v, %v, and had %v", name, limit, err, r.had)
				}
			}
			if r.hit != times {
				t.Errorf("%s: %d strangers were hit, want %d: the test tests nothing", name, r.hit, times)
			}
			if r.threads > 0 {
				t.Logf("%s: %d of the strangers were threads", name, r.threads)
			}
		}
	})
}

// A process is held until it has been waited for, with each kind of handle.
func TestHolders(t *testing.T) {
	for name, kernel := range realKernels {
		command := exec.Command("cat")
		if _, err := command.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		must.Succeed(t, command.Start())
		pid := command.Process.Pid
		held, err := kernel.Open(pid)
		must.Succeed(t, err)
		defer held.Close()
		runs := held.Holds()
		must.Succeed(t, command.Process.Kill())
		await.That(t, await.Timeout, "a zombie", func() bool {
			text, err := kernel.Read(pid, "status")
			return err == nil && strings.Contains(string(text), "State:\tZ")
		})
		ended := held.Holds()
		_ = command.Wait() // killed
		if gone := !held.Holds(); !runs || !ended || !gone {
			t.Errorf("%s: held while it ran %t, when it had ended %t; gone %t", name, runs, ended, gone)
		}
		if _, err := kernel.Open(pid); !errors.Is(err, ErrGone) {
			t.Errorf("%s: a process that is gone: %v", name, err)
		}
	}
}

// The limit of an unrelated process's thread is that of the process.
func TestProcessOf_thread(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread := make(chan int)
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread() // uses another thread than the test's
		thread <- unix.Gettid()
		<-done
	}()
	defer close(done)
	id := <-thread
	if id == os.Getpid() {
		id = unix.Gettid() // at most one of the two threads is the process's first thread
	}
	for name, kernel := range realKernels {
		if _, err := kernel.Open(id); !errors.Is(err, ErrThread) {
			t.Errorf("%s: a thread: %v", name, err)
		}
	}
	if pid, err := New("/").processOf(id); err != nil || pid != os.Getpid() {
		t.Errorf("it belongs to process %d, %v", pid, err)
	}
}

// namespaces requests a PID and a mount namespace. Without root, they need a user namespace.
func namespaces() *syscall.SysProcAttr {
	attributes := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	if uid := os.Getuid(); uid != 0 {
		attributes.Cloneflags |= syscall.CLONE_NEWUSER
		attributes.UidMappings = []syscall.SysProcIDMap{{HostID: uid, Size: 1}}
		attributes.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	return attributes
}

// If this process lacks a permission, the error says what to do. Root with all capabilities has every permission, so
// there is no error.
func TestRaise_hardLimit(t *testing.T) {
	pid, _ := start(t, "ulimit -H -l 128; echo; "+hang)
	p := &Processes{sessions{New("/").kernel, map[int]string{pid: idA}}}
	own, err := p.kernel.Read(os.Getpid(), "status")
	must.Succeed(t, err)
	capabilities, err := numberAfter(own, "CapEff:", 16, 64)
	must.Succeed(t, err)
	const capSysResource = 24
	got := p.Raise(t.Context(), map[string]spec.Limit{idA: softWanted})[idA]
	limit, err := p.Memlock(pid)
	must.Succeed(t, err)
	if capabilities&(1<<capSysResource) != 0 {
		if got.Err != nil || limit.Hard != softWanted {
			t.Errorf("with the capability: %+v, limit %v", got, limit)
		}
		return
	}
	if !errors.Is(got.Err, unix.EPERM) || !strings.Contains(got.Err.Error(), "this change needs CAP_SYS_RESOURCE") ||
		limit.Hard != 128<<10 {
		t.Errorf("without the capability: %+v, limit %v", got, limit)
	}
}

// Ten processes fork while they are raised, and none is left low. With only one pass, some were left low in eight of
// twelve runs.
func TestRaise_forkingProcesses(t *testing.T) {
	const forkers, forksOfEach = 10, 30
	pid, lines := start(t, fmt.Sprintf(`j=0
		while [ $j -lt %d ]; do
			j=$((j+1))
			(
				i=0
				while [ $i -lt %d ]; do
					i=$((i+1))
					%s &
				done
				echo done
				wait
			) &
		done
		echo all fork
		wait`, forkers, forksOfEach, hang))
	p := &Processes{sessions{New("/").kernel, map[int]string{pid: idA}}}
	got := p.Raise(t.Context(), map[string]spec.Limit{idA: softWanted})[idA]
	if got.Err != nil || got.Raised < forkers+1 {
		t.Errorf("%+v: there were %d shells and more to be raised", got, forkers+1)
	}
	for range forkers {
		if !lines.Scan() {
			t.Error("the script did not go on")
		}
	}
	members, err := p.Containers()
	must.Succeed(t, err)
	if want := 1 + forkers*(1+forksOfEach); len(members[idA]) != want {
		t.Errorf("%d processes, want %d", len(members[idA]), want)
	}
	left := 0
	for _, member := range members[idA] {
		limit, err := p.Memlock(member)
		must.Succeed(t, err)
		if limit.Soft < softWanted {
			left++
		}
	}
	t.Logf("%d processes, %d raised, the others born raised, %d left low", len(members[idA]), got.Raised, left)
	if left > 0 {
		t.Errorf("%d processes are left low", left)
	}
}
