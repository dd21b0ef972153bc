// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package node boots a real RDMA node on any amd64 Debian machine. The node is virtual. It has Debian's kernel,
// soft-RoCE HCAs, the host's own files (read-only, with a writable layer that is lost at the end), and containerd, OCI
// runtimes, and container images to run pods. It needs no HCA and no KVM.
//
// Prepare builds the parts once into a cache that clones share. Boot starts a node. Run runs a command on it, streams
// its output, and returns its exit status. The package does not know what is tested on the node, and starts neither
// containerd nor a plugin.
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

// bootLimit is how long a guest may take to be ready. It takes four seconds on an idle machine, and ten times as long
// on a badly overloaded one.
const bootLimit = 3 * time.Minute

// Options describe a node. The zero Options describe the usual one.
type Options struct {
	// Memory is the guest's memory in MiB; 0 means 4096.
	Memory int
	// CPUs is the number of virtual CPUs; 0 means 2. Each emulated CPU is a thread on the host. If there are more of them
	// than idle cores, they wait for locks whose holders are not running. Two emulated CPUs have locked up once, for an
	// unknown reason.
	CPUs int
	// HCAs is the number of software HCAs; 0 means 3, and a negative number means none. Their names are rxe0, rxe1, and so
	// on. If there are several, the port of the last one is down.
	HCAs int
	// Share is a directory of the host that the guest can write to, at /run/host-share; "" means none.
	Share string
	// Machine is what runs the guest: "kvm" or "tcg" for QEMU, or "uml" for a user-mode kernel. "" means the fastest one
	// that works on this host.
	Machine string
	// Console receives the messages of the guest's kernel, if it is not nil. The last lines are always kept.
	Console io.Writer
	// Log receives messages about steps that take time on the host, if it is not nil.
	Log io.Writer

	cable *cable // nil if the node is not connected to another one
}

// Command is a command to run in the guest.
type Command struct {
	Args []string
	Env  []string  // added to the environment of every command in the guest
	Dir  string    // "" means "/"
	In   io.Reader // nil means /dev/null
	Out  io.Writer
	Err  io.Writer
	// Terminal gives the command a terminal of this size. In and Out are then the terminal's input and output.
	Terminal *wire.Size
	// Resized reports changes of the terminal's size.
	Resized <-chan wire.Size
}

// DiedError means that the guest or its emulator ended unexpectedly.
type DiedError struct {
	// Cause is the emulator's error; nil if it is unknown.
	Cause error
	// LockedUp means that the guest's kernel panicked because a CPU made no progress. This is a fault of the emulation or
	// the kernel, not of a program, so the same command may well succeed on another node.
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
	// BootTime is how long the node took until it was ready.
	BootTime time.Duration

	running sync.Mutex // one command at a time
}

type frame struct {
	kind    wire.Kind
	payload []byte
}

// Boot starts a node and waits until it is ready for commands. If the context ends before that, or bootLimit has
// passed, Boot ends the node. Later, Close ends it. If Boot returns an error and a node, the node has a console to
// show.
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
		if absolute, err := filepath.Abs(o.Share); err == nil { // if this fails, the guest reports that it cannot mount the directory
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
	defer func() { _ = os.RemoveAll(scratch) }() // a guest that has booted has these files open, so they exist until it ends
	emulator, err := startEmulator(parts, options, scratch)
	if err != nil {
		return nil, err
	}
	n := &Node{emulator: emulator, frames: make(chan frame, 16)}
	go n.receive()
	for {
		next, err := n.next(ctx)
		if err != nil {
			_ = n.Close() // the important error was already returned
			return n, fmt.Errorf("boot the node: %w", err)
		}
		if next.kind == wire.Ready {
			n.BootTime = time.Since(begin)
			return n, nil
		}
	}
}

// Run runs a command, and waits until the command has ended and all its output was written. It returns the command's
// exit status. It returns an error if the context ended (the command is still running: close the node), if the node
// died (a DiedError), or if the command could not be started.
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

// Close ends the node at once. The node contains nothing that needs a shutdown.
func (n *Node) Close() error {
	return n.emulator.stop()
}

// Console returns the last lines that the guest's kernel and its emulator printed.
func (n *Node) Console() string {
	return strings.Join(n.emulator.console.last(), "\n")
}

// receive passes frames from the port to the channel until the emulator is gone.
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
			return // the command has ended, and does not read the rest
		}
		if count > 0 && n.emulator.sendBytes(wire.Stdin, buffer[:count]) != nil {
			return
		}
		if err != nil {
			_ = n.emulator.sendBytes(wire.StdinEnd, nil) // if this fails, the node has died, and Run returns that
			return
		}
	}
}

func (n *Node) sendSizes(ctx context.Context, sizes <-chan wire.Size) {
	for {
		select {
		case size := <-sizes:
			_ = n.emulator.send(wire.Resize, size) // if this fails, the node has died, and Run returns that
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

// ErrTimeout is the cause of a context whose time for the node has passed.
var ErrTimeout = errors.New("the node has used up its time")
