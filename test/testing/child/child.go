// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package child starts processes that end when the process that started them is killed. It is not needed for a child
// that reads its standard input to the end: such a child ends by itself, and so do its own children.
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

// thread runs the functions that it receives on one thread, which starts all children and never ends. When the thread
// that started a child ends, the kernel acts as if the whole parent had ended.
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

// Start starts a command. When this process ends, the kernel kills the command's process, but not that process's own
// children.
func Start(command *exec.Cmd) error {
	if command.SysProcAttr == nil {
		command.SysProcAttr = &syscall.SysProcAttr{}
	}
	command.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error)
	thread() <- func() { started <- command.Start() }
	return <-started
}

// Freeze stops a process, which need not be a child, and returns when it has stopped. Sending the signal is not enough,
// because the process's threads continue until one of them has received the signal, for which it may have to wait for a
// CPU.
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

// haveStopped reports whether all threads of a process have stopped. It returns an error if the process has ended.
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
			return false, nil // the thread has ended; the next call finds the others
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
