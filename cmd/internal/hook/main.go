// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"

	"github.com/rdma-spec/rdma-spec/cmd/internal/journal"
	"github.com/rdma-spec/rdma-spec/plugin/limits"
)

// Program is the program's name, also in the journal.
const Program = "rdma-hook"

// Main runs the hook memlock with its flags and returns the exit status. A status other than 0 keeps the container from
// starting, so only --required makes an error one. A runtime discards what a hook writes where its status is 0: an
// error is a line in the journal as well.
func Main(args []string, stdin io.Reader, stderr io.Writer) int {
	return run(args, stdin, stderr, inForce, limits.New("/"), journal.New(Program).Error)
}

func run(args []string, stdin io.Reader, stderr io.Writer, policy string, processes *limits.Processes,
	log func(line string) error) int {
	o := Options{inForce: policy}
	flags := pflag.NewFlagSet(Program, pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Usage = func() {}
	o.AddFlags(flags)
	wrong := flags.Parse(args)
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
	fmt.Fprintf(stderr, "%s: %s\n", Program, line)
	_ = log(line) // there is nobody else to tell
	if o.required {
		return 1
	}
	return 0
}
