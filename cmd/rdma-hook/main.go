// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Command rdma-hook is what an OCI runtime runs between a container's creation and its start: it raises RLIMIT_MEMLOCK
// of the container's first process. A CDI file names it as a createRuntime hook, since CDI has no rlimits. The runtime
// runs it for each container with a CDI device, so it is a program of its own, which imports little and starts in a
// fraction of the time that rdma-spec needs.
//
// It knows nothing of HCAs and of policy: where somebody else decides about a container's memlock, it leaves the
// container alone. That is the spec's author where the bundle's config.json names RLIMIT_MEMLOCK, and under Kubernetes
// the plugin, unless an administrator says that the node has none. It also leaves sandboxed runtimes alone, whose
// process is a virtual machine's monitor.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/internal/journal"
	"github.com/rdma-spec/rdma-spec/plugin/limits"
)

// program is the program's name, also in the journal.
const program = "rdma-hook"

const help = `Raise RLIMIT_MEMLOCK of a container's first process, as a createRuntime hook. Runtimes discard what a
hook writes, so errors are also written to the journal: journalctl -t rdma-hook. After an error, the exit
status is still 0, and the container starts.
`

func main() {
	os.Exit(runHook(os.Args[1:], os.Stdin, os.Stderr, inForce, limits.New("/"), journal.New(program).Error))
}

// runHook raises what the call asks for and returns the exit status. A status other than 0 keeps the container from
// starting, so only --required makes an error one. A runtime discards what a hook writes where its status is 0: an
// error is a line in the journal as well.
func runHook(args []string, stdin io.Reader, stderr io.Writer, policy string, processes *limits.Processes,
	log func(line string) error) int {
	o := options{inForce: policy}
	flags := o.flags()
	if len(args) == 0 || args[0] != "memlock" || len(args) == 2 && args[1] == "--help" {
		to := stderr
		if len(args) > 0 && args[len(args)-1] == "--help" {
			to = os.Stdout
		}
		fmt.Fprintf(to, "%s\nUsage: %s memlock [flags] <OCI-STATE\n%s", help, program, flags.FlagUsages())
		return 0 // and the container starts
	}
	wrong := flags.Parse(args[1:])
	if wrong == nil && flags.NArg() > 0 {
		wrong = errors.New("it takes no arguments")
	}
	err := o.inTime(func() error {
		if wrong != nil {
			_, _ = io.Copy(io.Discard, stdin) // a runtime may fail where it cannot write all of it
			return wrong
		}
		return o.raise(stdin, processes)
	})
	if err == nil {
		return 0
	}
	line := strings.ReplaceAll(err.Error(), "\n", "; ")
	fmt.Fprintf(stderr, "%s: %s\n", program, line)
	_ = log(line) // there is nobody else to tell
	if o.required {
		return 1
	}
	return 0
}
