// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package wire is the protocol between the host and the agent in the guest over one virtio serial port. Each frame has
// a kind, a length, and a payload.
//
// The guest sends Ready first. The host then sends a Job and, while the job is running, Stdin, StdinEnd, and Resize.
// The guest sends Stdout and Stderr in the order in which they were written, and ends the job with Exit. One job runs
// at a time.
package wire

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// PortName is the name of the virtio serial port that carries the frames.
const PortName = "rdma-node"

// maxPayload bounds a frame's payload in bytes, so that noise on the port is detected, and is not read as a frame of
// four gigabytes.
const maxPayload = 4 << 20

// Kind is the kind of a frame.
type Kind byte

const (
	// Ready means that the guest has booted and is waiting for a job. No payload.
	Ready Kind = iota + 1
	// StartJob carries a Job.
	StartJob
	// Stdin carries bytes for the job's standard input.
	Stdin
	// StdinEnd means that the job's standard input has ended. No payload.
	StdinEnd
	// Resize carries a Size, because the size of the host's terminal has changed.
	Resize
	// Stdout carries bytes that the job wrote to its standard output or terminal.
	Stdout
	// Stderr carries bytes that the job wrote to its standard error.
	Stderr
	// ExitJob carries an Exit, the last frame of a job.
	ExitJob
)

// Job is a command to run in the guest.
type Job struct {
	Args []string `json:"args"`
	// Env is added to the environment that every command in the guest has.
	Env []string `json:"env,omitempty"`
	// Dir is the directory to run in; empty is "/".
	Dir string `json:"dir,omitempty"`
	// Input means that Stdin frames follow; otherwise stdin is /dev/null.
	Input bool `json:"input,omitempty"`
	// Terminal, if set, gives the command a terminal of that size instead of three pipes.
	Terminal *Size `json:"terminal,omitempty"`
}

// Size is the size of a terminal in characters.
type Size struct {
	Rows    uint16 `json:"rows"`
	Columns uint16 `json:"columns"`
}

// Exit is the result of a job.
type Exit struct {
	// Status is the command's exit status. It is 128 plus the signal's number if a signal ended the command, and 127 if
	// the command could not be started.
	Status int `json:"status"`
	// Problem is why the command could not be started; "" if it was.
	Problem string `json:"problem,omitempty"`
}

// Write sends one frame with one call of w.Write.
func Write(w io.Writer, kind Kind, payload []byte) error {
	frame := make([]byte, 5, 5+len(payload))
	frame[0] = byte(kind)
	binary.BigEndian.PutUint32(frame[1:], uint32(len(payload)))
	_, err := w.Write(append(frame, payload...))
	return err
}

// WriteJSON sends one frame that carries value as JSON.
func WriteJSON(w io.Writer, kind Kind, value any) error {
	payload, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return Write(w, kind, payload)
}

// Read receives one frame. It returns io.EOF if the other side ended between two frames, and io.ErrUnexpectedEOF if it
// ended within one.
func Read(r io.Reader) (Kind, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	kind := Kind(head[0])
	size := binary.BigEndian.Uint32(head[1:])
	if kind < Ready || kind > ExitJob || size > maxPayload {
		return 0, nil, fmt.Errorf("frame of kind %d and %d bytes on port %s: the other side is not rdma-node's", kind, size,
			PortName)
	}
	payload := make([]byte, size)
	if _, err := io.ReadFull(r, payload); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return kind, payload, nil
}
