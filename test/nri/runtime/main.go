// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Command runtime is a container runtime from the point of view of NRI plugins: NRI's own code for runtimes, with
// containerd's locks around it, and goroutines that create containers. It is a separate module, with a .mod file for
// each version of NRI that containerd uses.
//
// It reads commands from standard input, one per line, and answers each with a line of JSON:
//
//	load PAUSE    start to create containers, with pauses of at most this length
//	stop          begin to stop a container
//	stopped       finish stopping that container
//	counters      return what the runtime has noticed so far
//	creations     return the results of all creations
//
// It ends when its input ends. It never waits for creations, so it answers even if they are stuck.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/sirupsen/logrus"
)

func main() {
	socket := flag.String("socket", "", "listen for plugins at this `PATH`")
	timeout := flag.Duration("timeout", 2*time.Second, "how long a plugin may take for an answer")
	seed := flag.Uint64("seed", 0, "of the load's random numbers")
	memlock := flag.Uint64("memlock", 0, "the memlock in `BYTES` that the plugin gives")
	major := flag.Int64("major", 0, "of the verbs device that containers hold")
	minor := flag.Int64("minor", 0, "of the same device")
	flag.Parse()
	c, err := newContainerd(*socket, *timeout)
	if err != nil {
		logrus.Fatal(err)
	}
	device := &api.LinuxDevice{Path: "/dev/infiniband/uverbs0", Type: "c", Major: *major, Minor: *minor}
	l := &load{containerd: c, memlock: *memlock, device: device}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if err := l.command(in.Text(), *seed); err != nil {
			logrus.Fatalf("%s: %v", in.Text(), err)
		}
	}
}

// command carries out a command, and prints the answer.
func (l *load) command(line string, seed uint64) error {
	command, argument, _ := strings.Cut(line, " ")
	switch command {
	case "load":
		pause, err := time.ParseDuration(argument)
		if err != nil {
			return err
		}
		for n := range uint64(4) {
			go l.run(fmt.Sprint("c", n), seed+n, pause)
		}
	case "stop":
		l.stopping = l.nri.BlockPluginSync()
	case "stopped":
		l.stopping.Unblock()
	case "creations":
		l.mu.Lock()
		defer l.mu.Unlock()
		return json.NewEncoder(os.Stdout).Encode(l.creations)
	}
	noticed.mu.Lock()
	defer noticed.mu.Unlock()
	return json.NewEncoder(os.Stdout).Encode(noticed.counts)
}
