// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package child starts processes that end when the process that started them is killed. A child that reads until the
// end of its standard input does that by itself, and so do its own children.
package child

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/rdma-spec/rdma-spec/test/testing/await"
)

// thread is the one that starts all children, and never ends: the kernel takes the end of the thread that started a
// child for the end of the parent.
var thread = sync.OnceValue(func() chan<- func() {
	starts := make(chan func())
	go func() {
		runtime.LockOSThread()
		for start := range starts {
			start()
		}
	}()
	return starts
})

// Start starts a command. The kernel kills it, but not its own children, once this process has ended.
func Start(command *exec.Cmd) error {
	if command.SysProcAttr == nil {
		command.SysProcAttr = &syscall.SysProcAttr{}
	}
	command.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error)
	thread() <- func() { started <- command.Start() }
	return <-started
}

// Freeze stops a process, which need not be a child, and returns when it has stopped. After the signal alone, its threads
// go on: one of them has to see the signal, for which it may wait for a CPU, and it stops the others.
func Freeze(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("stop process %d: %w", pid, err)
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for late := time.Now().Add(await.Timeout); time.Now().Before(late); <-tick.C {
		if stopped, err := haveStopped(pid); stopped || err != nil {
			return err
		}
	}
	return fmt.Errorf("stop process %d: it goes on after %s", pid, await.Timeout)
}

// haveStopped says whether all threads of a process have stopped. It is an error where the process has ended.
func haveStopped(pid int) (bool, error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return false, err
	}
	stopped := 0
	ended := 0
	for _, thread := range threads {
		text, err := os.ReadFile(thread)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			return false, nil // another look finds the others
		}
		if err != nil {
			return false, err
		}
		switch state := text[bytes.LastIndexByte(text, ')')+2]; state {
		case 'T':
			stopped++
		case 'Z', 'X':
			ended++
		}
	}
	if ended == len(threads) {
		return false, fmt.Errorf("process %d has ended", pid)
	}
	return stopped+ended == len(threads), nil
}
