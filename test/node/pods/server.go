// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"syscall"
	"time"

	"github.com/rdma-spec/rdma-spec/test/node/daemon"
)

const startTimeout = 2 * time.Minute

// Server is a container runtime's daemon on the node, and a client of it.
type Server struct {
	*Client
	start   func() (*daemon.Process, error)
	process *daemon.Process
}

// Serve runs a container runtime's daemon with additional environment variables, and waits until it serves CRI at a
// socket.
func Serve(ctx context.Context, socket string, env []string, program string, args ...string) (*Server, error) {
	client, err := NewClient(socket)
	if err != nil {
		return nil, err
	}
	s := &Server{Client: client, start: func() (*daemon.Process, error) { return daemon.Start(env, program, args...) }}
	if err := s.serve(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Server) serve(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var err error
	if s.process, err = s.start(); err != nil {
		return err
	}
	return s.process.Await(ctx, "answers CRI", func() bool { return s.Answers(ctx) })
}

// Stop ends the daemon. Its containers continue to run.
func (s *Server) Stop() {
	s.Close()
	s.process.Stop()
}

// Restart stops the daemon and starts it again. Calls in progress fail; later calls go to the new process.
func (s *Server) Restart(ctx context.Context) error {
	s.process.Stop()
	return s.serve(ctx)
}

// Signal sends a signal to the daemon.
func (s *Server) Signal(signal syscall.Signal) error { return s.process.Signal(signal) }

// Await waits for a condition while the daemon runs.
func (s *Server) Await(ctx context.Context, what string, condition func() bool) error {
	return s.process.Await(ctx, what, condition)
}

// Log returns the daemon's output since it was started.
func (s *Server) Log() string { return s.process.Log() }
