// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/rdma-spec/rdma-spec/test/node/wire"
)

// leftover is how long a command's output is still read after the command has ended. A process that the command left
// behind, such as containerd, can keep the output open.
const leftover = time.Second

// job is the running command. Only the goroutine that reads frames calls its methods. They have no effect if the job
// has ended or is nil.
type job struct {
	stdin    io.WriteCloser // nil means that the command reads /dev/null
	terminal *terminal      // nil means that the command has pipes
}

// start starts the command, and sends its output and its exit status to the host. The command's environment is the
// agent's, with the job's variables added.
func start(order wire.Job, host *sender) *job {
	command := exec.Command(order.Args[0], order.Args[1:]...)
	command.Env = append(os.Environ(), order.Env...)
	command.Dir = order.Dir
	command.WaitDelay = leftover
	if command.Dir == "" {
		command.Dir = "/"
	}

	run := &job{}
	err := run.connect(command, order, host)
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		run.terminal.close()
		exit(host, wire.Exit{Status: 127, Problem: err.Error()})
		return nil
	}
	go func() {
		if run.terminal != nil {
			run.terminal.copyOutput(stream{host, wire.Stdout})
		}
		err := command.Wait()
		run.terminal.close()
		exit(host, wire.Exit{Status: status(command, err)})
	}()
	return run
}

// connect connects the command's standard input, output, and error.
func (j *job) connect(command *exec.Cmd, order wire.Job, host *sender) error {
	if order.Terminal != nil {
		terminal, err := openTerminal(*order.Terminal)
		if err != nil {
			return err
		}
		j.terminal = terminal
		j.stdin = terminal.master
		terminal.attach(command)
		return nil
	}
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Stdout = stream{host, wire.Stdout}
	command.Stderr = stream{host, wire.Stderr}
	if !order.Input {
		return nil
	}
	var err error
	j.stdin, err = command.StdinPipe()
	return err
}

func (j *job) input(data []byte) {
	if j != nil && j.stdin != nil {
		_, _ = j.stdin.Write(data) // fails if the command does not read its input
	}
}

func (j *job) inputEnd() {
	if j != nil && j.stdin != nil && j.terminal == nil {
		_ = j.stdin.Close()
	}
}

func (j *job) resize(size wire.Size) {
	if j != nil && j.terminal != nil {
		_ = j.terminal.resize(size)
	}
}

// status returns the exit status of a command as a shell would.
func status(command *exec.Cmd, err error) int {
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return 0
	}
	if wait, ok := command.ProcessState.Sys().(syscall.WaitStatus); ok && wait.Signaled() {
		return 128 + int(wait.Signal())
	}
	return command.ProcessState.ExitCode()
}

func exit(host *sender, end wire.Exit) {
	payload, _ := json.Marshal(end) // an int and a string always marshal
	host.send(wire.ExitJob, payload)
}
