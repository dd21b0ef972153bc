// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Command rdma-hook raises the RLIMIT_MEMLOCK of a container's first process. An OCI runtime runs it between the
// container's creation and its start. A CDI file lists it as a createRuntime hook, since CDI has no rlimits. The
// runtime runs it for each container with a CDI device, so it is a separate program with few imports, which starts in a
// fraction of the time that rdma-spec needs.
//
// It depends on neither HCAs nor the policy. If another party decides the container's memlock, it leaves the container
// unchanged. That party is the spec's author if the bundle's config.json sets RLIMIT_MEMLOCK, and the plugin under
// Kubernetes, unless an administrator says that the node has none. It also leaves sandboxed containers unchanged, whose
// process is a virtual machine monitor.
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
a hook's output, so errors are also written to the journal: journalctl -t rdma-hook. After an
error, the exit status is still 0, and the container starts.
`

func main() {
	os.Exit(runHook(os.Args[1:], os.Stdin, os.Stderr, inForce, limits.New("/"), journal.New(program).Error))
}

// runHook runs the hook and returns the exit status. A status other than 0 keeps the container from starting, so an
// error causes one only with --required. A runtime discards the hook's output if the status is 0, so errors also go to
// the journal.
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
			_, _ = io.Copy(io.Discard, stdin) // a runtime may fail if it cannot write all of it
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
