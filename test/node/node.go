// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package node boots a real RDMA node on any amd64 Debian machine: a virtual one
// with Debian's kernel, soft-RoCE HCAs, the host's own files (read-only, with a
// writable layer that is lost at the end), and containerd, OCI runtimes and
// container images to run pods with. It needs no HCA and no KVM.
//
// Prepare builds the parts once into a cache that clones share; Boot starts a
// node; Run runs a command in it, streams its output and returns its exit
// status. The package knows nothing of what is tested on the node, starts no
// containerd and no plugin.
package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/rdma-spec/rdma-spec/test/node/wire"
)

// bootLimit is how long a guest may take to be ready. It takes four seconds on
// an idle machine, and ten times that on one that is badly overloaded.
const bootLimit = 3 * time.Minute

// Options describe a node. The zero value is the ordinary one.
type Options struct {
	// Memory is the guest's memory in MiB; 0 is 4096.
	Memory int
	// CPUs is the number of virtual CPUs; 0 is 2. Emulated ones are a thread of the host each: where there are more of
	// them than the host has idle cores, they wait for locks whose holders the host has put aside. Two of them have locked
	// up once, for an unknown reason.
	CPUs int
	// HCAs is the number of soft HCAs; 0 is 3, a negative number none. They are
	// called rxe0, rxe1, ...; the port of the last of several is down.
	HCAs int
	// Share is a directory of the host that the guest can write, at
	// /run/host-share; "" is none.
	Share string
	// Machine is what runs the guest: "kvm" or "tcg", which are QEMU's, or "uml", a kernel that is a program of the host.
	// "" is the fastest of them that has been seen to work on this host.
	Machine string
	// Console receives the messages of the guest's kernel, if it is not nil. The last
	// lines are kept in any case.
	Console io.Writer
	// Log receives what takes time on the host, if it is not nil.
	Log io.Writer

	cable *cable // nil: the node is alone
}

// Command is what to run in the guest.
type Command struct {
	Args []string
	Env  []string  // added to what every command in the guest has
	Dir  string    // "" is "/"
	In   io.Reader // nil is /dev/null
	Out  io.Writer
	Err  io.Writer
	// Terminal gives the command a terminal; In, Out are its two directions.
	Terminal *wire.Size
	// Resized reports changes of the terminal's size.
	Resized <-chan wire.Size
}

// DiedError means that the guest or its emulator ended when it should not have.
type DiedError struct {
	// Cause is how the emulator ended, or nil if that is unknown.
	Cause error
	// LockedUp means that the guest's kernel found a CPU without progress, and panicked. That is a fault of the emulation
	// or of the kernel, not of a program: the same once more may well succeed.
	LockedUp bool
}

func (e *DiedError) Error() string {
	if e.LockedUp {
		return "the node's CPUs have locked up: its console says where"
	}
	if e.Cause == nil {
		return "the node has ended by itself: its console says why"
	}
	return fmt.Sprintf("the node has ended by itself (%v): its console says why", e.Cause)
}

func (e *DiedError) Unwrap() error { return e.Cause }

// Node is a running virtual machine.
type Node struct {
	emulator *emulator
	frames   chan frame
	// BootTime is how long the node took from start to readiness.
	BootTime time.Duration

	running sync.Mutex // one command at a time
}

type frame struct {
	kind    wire.Kind
	payload []byte
}

// Boot starts a node and waits until it is ready for commands. Where ctx ends
// before that, or after bootLimit, the node is ended; afterwards Close ends it. On an error the
// node is not nil if there is a console to show.
func Boot(ctx context.Context, parts PartSet, options Options) (*Node, error) {
	options = options.withDefaults()
	var err error
	if options.Machine, err = chooseMachine(ctx, parts, options); err != nil {
		return nil, err
	}
	return boot(ctx, parts, options)
}

func (o Options) withDefaults() Options {
	if o.Memory == 0 {
		o.Memory = 4096
	}
	if o.CPUs == 0 {
		o.CPUs = 2
	}
	switch {
	case o.HCAs == 0:
		o.HCAs = 3
	case o.HCAs < 0:
		o.HCAs = 0
	}
	if o.Console == nil {
		o.Console = io.Discard
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	if o.Share != "" {
		if absolute, err := filepath.Abs(o.Share); err == nil { // otherwise the guest cannot mount it, and says so
			o.Share = absolute
		}
	}
	return o
}

func boot(ctx context.Context, parts PartSet, options Options) (*Node, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, bootLimit, ErrTimeout)
	defer cancel()
	begin := time.Now()
	scratch, err := os.MkdirTemp("", "rdma-node-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(scratch) }() // a guest that has booted has its files open, and they go with it
	emulator, err := startEmulator(parts, options, scratch)
	if err != nil {
		return nil, err
	}
	n := &Node{emulator: emulator, frames: make(chan frame, 16)}
	go n.receive()
	for {
		next, err := n.next(ctx)
		if err != nil {
			_ = n.Close() // the error that counts is there already
			return n, fmt.Errorf("boot the node: %w", err)
		}
		if next.kind == wire.Ready {
			n.BootTime = time.Since(begin)
			return n, nil
		}
	}
}

// Run runs a command and waits until it has ended and all its output has been
// written. It returns the command's exit status, or an error where there is
// none: ctx has ended (the command still runs: Close the node), or the node has
// died (a DiedError), or the command could not be started.
func (n *Node) Run(ctx context.Context, command Command) (status int, err error) {
	n.running.Lock()
	defer n.running.Unlock()
	job := wire.Job{Args: command.Args, Env: command.Env, Dir: command.Dir, Input: command.In != nil,
		Terminal: command.Terminal}
	if err := n.emulator.send(wire.StartJob, job); err != nil {
		return 0, n.died(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if command.In != nil {
		go n.sendInput(ctx, command.In)
	}
	go n.sendSizes(ctx, command.Resized)
	for {
		next, err := n.next(ctx)
		if err != nil {
			return 0, err
		}
		switch next.kind {
		case wire.Stdout:
			err = write(command.Out, next.payload)
		case wire.Stderr:
			err = write(command.Err, next.payload)
		case wire.ExitJob:
			return exitStatus(command, next.payload)
		}
		if err != nil {
			return 0, err
		}
	}
}

// Close ends the node at once. Nothing that it holds is worth a shutdown.
func (n *Node) Close() error {
	return n.emulator.stop()
}

// Console returns the last lines of the guest's kernel and its emulator.
func (n *Node) Console() string {
	return strings.Join(n.emulator.console.last(), "\n")
}

// receive moves frames from the port to the channel until the emulator is gone.
func (n *Node) receive() {
	defer close(n.frames)
	for {
		kind, payload, err := wire.Read(n.emulator.port)
		if err != nil {
			return
		}
		n.frames <- frame{kind, payload}
	}
}

// next waits for a frame.
func (n *Node) next(ctx context.Context) (frame, error) {
	select {
	case next, ok := <-n.frames:
		if !ok {
			return frame{}, n.died(n.emulator.wait())
		}
		return next, nil
	case <-ctx.Done():
		return frame{}, context.Cause(ctx)
	}
}

func (n *Node) died(cause error) *DiedError {
	return &DiedError{Cause: cause, LockedUp: strings.Contains(n.Console(), lockupSaid)}
}

func (n *Node) sendInput(ctx context.Context, in io.Reader) {
	buffer := make([]byte, 32<<10)
	for {
		count, err := in.Read(buffer)
		if ctx.Err() != nil {
			return // these bytes were meant for a command that has ended
		}
		if count > 0 && n.emulator.sendBytes(wire.Stdin, buffer[:count]) != nil {
			return
		}
		if err != nil {
			_ = n.emulator.sendBytes(wire.StdinEnd, nil) // a dead node shows itself to Run
			return
		}
	}
}

func (n *Node) sendSizes(ctx context.Context, sizes <-chan wire.Size) {
	for {
		select {
		case size := <-sizes:
			_ = n.emulator.send(wire.Resize, size) // a dead node shows itself to Run
		case <-ctx.Done():
			return
		}
	}
}

func exitStatus(command Command, payload []byte) (int, error) {
	var exit wire.Exit
	if err := json.Unmarshal(payload, &exit); err != nil {
		return 0, fmt.Errorf("read the exit status of %s: %w", command.Args[0], err)
	}
	if exit.Problem != "" {
		return exit.Status, fmt.Errorf("start %s in the node: %s", command.Args[0], exit.Problem)
	}
	return exit.Status, nil
}

func write(to io.Writer, data []byte) error {
	if to == nil {
		return nil
	}
	_, err := to.Write(data)
	return err
}

// ErrTimeout is the cause of a context that has run out of the node's time.
var ErrTimeout = errors.New("the node has used up its time")
