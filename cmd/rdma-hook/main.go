// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Command rdma-hook raises the RLIMIT_MEMLOCK of a container's first process. An OCI runtime runs the hook between the
// creation and the start of the container. A CDI file lists rdma-hook as a createRuntime hook, because CDI does not
// support rlimits. The runtime runs the hook for each container with a CDI device. For this reason, rdma-hook is a
// separate program with few imports, and starts much faster than rdma-spec.
//
// The hook does not depend on HCAs or the policy. If the bundle's config.json sets RLIMIT_MEMLOCK, the hook leaves the
// container unchanged. Under Kubernetes, the plugin sets memlock, so the hook leaves the container unchanged unless an
// administrator specifies that the node has no plugin. The hook also leaves sandboxed containers unchanged, because
// their process is a virtual machine monitor.
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

// program is the program's name, which the journal also uses.
const program = "rdma-hook"

const help = `As a createRuntime hook, raise the RLIMIT_MEMLOCK of a container's first process. Runtimes discard
a hook's output, so errors are also written to the journal. To read the errors, run
journalctl -t rdma-hook. Without --required, the exit status is 0 even after an error, and the
container starts.
`

func main() {
	os.Exit(runHook(os.Args[1:], os.Stdin, os.Stderr, inForce, limits.New("/"), journal.New(program).Error))
}

// runHook runs the hook and returns the exit status. A status other than 0 prevents the container from starting, so an
// error causes such a status only with --required. If the status is 0, the runtime discards the hook's output, so
// errors are also written to the journal.
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
		return 0 // a status of 0 lets the container start
	}
	wrong := flags.Parse(args[1:])
	if wrong == nil && flags.NArg() > 0 {
		wrong = errors.New("the memlock command takes no arguments")
	}
	err := o.inTime(func() error {
		if wrong != nil {
			_, _ = io.Copy(io.Discard, stdin) // a runtime might fail if it cannot write the whole state
			return wrong
		}
		return o.raise(stdin, processes)
	})
	if err == nil {
		return 0
	}
	line := strings.ReplaceAll(err.Error(), "\n", "; ")
	fmt.Fprintf(stderr, "%s: %s\n", program, line)
	_ = log(line) // cannot be reported elsewhere
	if o.required {
		return 1
	}
	return 0
}
