// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package daemon runs long-lived programs for tests and the demo: it keeps their output, waits for conditions, and
// leaves none behind.
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
	err     error // valid once exited is closed; nil for a good end
}

// Start runs a program with variables added to the environment. It is killed when this process ends.
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

// Err returns how the program ended. It waits for that.
func (p *Process) Err() error {
	<-p.exited
	return p.err
}

// errEndedWell stands for the end of a program that went well but too early.
var errEndedWell = errors.New("exit status 0")

func (p *Process) errOrDone() error { return cmp.Or(p.err, errEndedWell) }

// Signal sends a signal to the program. SIGSTOP has stopped it then.
func (p *Process) Signal(s syscall.Signal) error {
	if s == syscall.SIGSTOP {
		return child.Freeze(p.PID())
	}
	return p.command.Process.Signal(s)
}

// Stop ends the program: SIGTERM, and SIGKILL after ten seconds. It returns when the program has ended.
func (p *Process) Stop() {
	_ = p.Signal(syscall.SIGTERM) // it may have ended already
	select {
	case <-p.exited:
	case <-time.After(10 * time.Second):
		_ = p.Signal(syscall.SIGKILL) // as above
		<-p.exited
	}
}

// AwaitLog waits until the program's output has a text. The error contains the output.
func (p *Process) AwaitLog(ctx context.Context, text string) error {
	return p.Await(ctx, fmt.Sprintf("says %q", text), func() bool { return strings.Contains(p.Log(), text) })
}

// Await waits for a condition, as long as the program runs.
func (p *Process) Await(ctx context.Context, what string, condition func() bool) error {
	return Await(ctx, 20*time.Millisecond, what, condition, p)
}

// Await waits for a condition, at a pace, as long as all of some programs run. The first of them is the one that makes
// the condition true. The error contains its output.
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
