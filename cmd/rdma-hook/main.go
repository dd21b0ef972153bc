// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Command rdma-hook raises memlock of a container that an OCI runtime creates. The runtime runs it for each container
// with a CDI device, so it is a program of its own, which starts in a fraction of the time that rdma-spec needs.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/rdma-spec/rdma-spec/cmd/internal/hook"
)

const help = `Raise RLIMIT_MEMLOCK of a container's first process, as a createRuntime hook. Runtimes discard what a
hook writes, so an error is also a line in the journal: journalctl -t rdma-hook. The exit status is 0
all the same, and the container starts.
`

func main() {
	if len(os.Args) < 2 || os.Args[1] != "memlock" || len(os.Args) == 3 && os.Args[2] == "--help" {
		var o hook.Options
		flags := pflag.NewFlagSet(hook.Program, pflag.ContinueOnError)
		o.AddFlags(flags)
		fmt.Fprintf(os.Stderr, "%s\nUsage: %s memlock [flags] <OCI-STATE\n%s", help, hook.Program, flags.FlagUsages())
		return // and the container starts
	}
	os.Exit(hook.Main(os.Args[2:], os.Stdin, os.Stderr))
}
