// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Command agent runs on the RDMA node. It opens the serial port that leads to the host, runs the jobs that the host
// sends, and returns their output and exit status. It knows nothing about RDMA. The guest's setup script prepares the
// node before the agent starts.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/term"

	"github.com/rdma-spec/rdma-spec/test/node/wire"
)

func main() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, "rdma-node agent:", err)
		os.Exit(1)
	}
}

// serve reads frames from the host until the host is gone.
func serve() error {
	port, err := openPort()
	if err != nil {
		return err
	}
	defer func() { _ = port.Close() }()

	host := &sender{port: port}
	host.send(wire.Ready, nil)

	var current *job
	frames := bufio.NewReaderSize(port, 64<<10)
	for {
		kind, payload, err := wire.Read(frames)
		if err != nil {
			return fmt.Errorf("read from the host: %w", err)
		}
		switch kind {
		case wire.StartJob:
			var order wire.Job
			if err := json.Unmarshal(payload, &order); err != nil {
				return fmt.Errorf("read a job: %w", err)
			}
			current = start(order, host)
		case wire.Stdin:
			current.input(payload)
		case wire.StdinEnd:
			current.inputEnd()
		case wire.Resize:
			var size wire.Size
			if err := json.Unmarshal(payload, &size); err != nil {
				return fmt.Errorf("read a terminal size: %w", err)
			}
			current.resize(size)
		}
	}
}

// openPort opens the port that leads to the host: QEMU's virtio serial port, or the first serial line of a user-mode
// (UML) kernel.
func openPort() (*os.File, error) {
	const virtio, line = "/sys/class/virtio-ports", "/dev/ttyS0"
	if _, err := os.Stat(virtio); err == nil {
		path, err := findPort(virtio, wire.PortName)
		if err != nil {
			return nil, err
		}
		return os.OpenFile(path, os.O_RDWR, 0)
	}
	port, err := os.OpenFile(line, os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	_, err = term.MakeRaw(int(port.Fd()))
	return port, err
}

// findPort returns the device node of the virtio serial port with this name. The guest has no udev, which would create
// a link.
func findPort(class, name string) (string, error) {
	files, err := filepath.Glob(filepath.Join(class, "*", "name"))
	if err != nil {
		return "", err
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err == nil && strings.TrimSpace(string(content)) == name {
			return filepath.Join("/dev", filepath.Base(filepath.Dir(file))), nil
		}
	}
	return "", fmt.Errorf("no virtio serial port %q in %s: was the guest started by rdma-node?", name, class)
}

// sender sends frames, and is safe for concurrent use.
type sender struct {
	mutex sync.Mutex
	port  *os.File
}

// send sends a frame. It ends the agent if the host is gone.
func (s *sender) send(kind wire.Kind, payload []byte) {
	s.mutex.Lock()
	err := wire.Write(s.port, kind, payload)
	s.mutex.Unlock()
	if err != nil {
		fmt.Fprintln(os.Stderr, "rdma-node agent: write to the host:", err)
		os.Exit(1)
	}
}

// stream is an io.Writer that sends each write as a frame of one kind.
type stream struct {
	to   *sender
	kind wire.Kind
}

func (s stream) Write(data []byte) (int, error) {
	s.to.send(s.kind, data)
	return len(data), nil
}
