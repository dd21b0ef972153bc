// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Command rdma-hook is `rdma-spec hook` as a program of its own. A runtime runs it for each container with a CDI device, and it starts in a
// fraction of the time.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/rdma-spec/rdma-spec/cmd/internal/hook"
)

func main() {
	if len(os.Args) < 2 || os.Args[1] != "memlock" || len(os.Args) == 3 && os.Args[2] == "--help" {
		var o hook.Options
		flags := pflag.NewFlagSet(hook.Program, pflag.ContinueOnError)
		o.AddFlags(flags)
		fmt.Fprintf(os.Stderr, "Usage: %s memlock [flags] <OCI-STATE\nSee 'rdma-spec hook memlock --help'.\n%s", hook.Program, flags.FlagUsages())
		return // and the container starts
	}
	os.Exit(hook.Main(os.Args[2:], os.Stdin, os.Stderr))
}
