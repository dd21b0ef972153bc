// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package daemon runs long-lived programs for tests and the demo. It keeps their output, waits for conditions, and ends
// all of them.
package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/rdma-spec/rdma-spec/test/testing/child"
	"github.com/rdma-spec/rdma-spec/test/testing/output"
)

// Process is a running program.
type Process struct {
	command *exec.Cmd
	log     output.Buffer
	exited  chan struct{}
	err     error // set before exited is closed; nil if the program succeeded
}

// Start runs a program with additional environment variables. The program is killed when this process ends.
func Start(env []string, program string, args ...string) (*Process, error) {
	p := &Process{command: exec.Command(program, args...), exited: make(chan struct{})}
	p.command.Env = append(os.Environ(), env...)
	p.command.Stdout = &p.log
	p.command.Stderr = &p.log
	p.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := child.Start(p.command); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.command.Wait()
		close(p.exited)
	}()
	return p, nil
}

// Log returns the program's output so far on stdout and stderr.
func (p *Process) Log() string { return p.log.String() }

// PID returns the program's process ID.
func (p *Process) PID() int { return p.command.Process.Pid }

// Exited is closed when the program has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Ended reports whether the program has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// Err waits until the program has ended, and returns its error; nil if it succeeded.
func (p *Process) Err() error {
	<-p.exited
	return p.err
}

// errEndedWell means that a program succeeded, but ended too early.
var errEndedWell = errors.New("exit status 0")

func (p *Process) errOrDone() error { return cmp.Or(p.err, errEndedWell) }

// Signal sends a signal to the program. After SIGSTOP, it waits until the program has stopped.
func (p *Process) Signal(s syscall.Signal) error {
	if s == syscall.SIGSTOP {
		return child.Freeze(p.PID())
	}
	return p.command.Process.Signal(s)
}

// Stop ends the program with SIGTERM, and after ten seconds with SIGKILL. It returns when the program has ended.
func (p *Process) Stop() {
	_ = p.Signal(syscall.SIGTERM) // it may have ended already
	select {
	case <-p.exited:
	case <-time.After(10 * time.Second):
		_ = p.Signal(syscall.SIGKILL) // see above
		<-p.exited
	}
}

// AwaitLog waits until the program's output contains a text. An error contains the output.
func (p *Process) AwaitLog(ctx context.Context, text string) error {
	return p.Await(ctx, fmt.Sprintf("says %q", text), func() bool { return strings.Contains(p.Log(), text) })
}

// Await waits for a condition while the program runs.
func (p *Process) Await(ctx context.Context, what string, condition func() bool) error {
	return Await(ctx, 20*time.Millisecond, what, condition, p)
}

// Await waits for a condition while all of the programs run, and checks it once per pace. The first program is the one
// that makes the condition true. The error contains the output of the program that ended or, after a timeout, of the
// first program.
func Await(ctx context.Context, pace time.Duration, what string, condition func() bool, programs ...*Process) error {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for !condition() {
		for _, p := range programs {
			if p.Ended() {
				return fmt.Errorf("%s ended (%w) before %s %s:\n%s", p.command.Path, p.errOrDone(),
					programs[0].command.Path, what, p.Log())
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w before it %s:\n%s", programs[0].command.Path, ctx.Err(), what, programs[0].Log())
		}
	}
	return nil
}
