// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// Run executes a command and returns the exit status. It calls release at the end.
func Run(root *cobra.Command, release func() error, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root.SilenceErrors = true
	root.SilenceUsage = true
	root.SetFlagErrorFunc(flagError)
	root.SetArgs(args)
	root.SetIn(stdin)
	result := &ResultWriter{Writer: stdout}
	root.SetOut(result)
	root.SetErr(stderr)
	refuseUnknownShell(root)
	command, err := root.ExecuteC()
	if removed := release(); err == nil {
		err = removed
	}
	if result.Err != nil {
		if onFile := new(fs.PathError); errors.As(result.Err, &onFile) {
			result.Err = onFile.Err
		}
		err = fmt.Errorf("cannot write to standard output: %w", result.Err)
	}
	var status ExitStatus
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrProblemFound):
		return 1
	case errors.As(err, &status):
		return int(status)
	}
	text := strings.Map(Printable, err.Error())
	if IsUsageError(err) {
		if word := unknownCommand.FindStringSubmatch(text); word != nil {
			text += DidYouMean(word[1], names(command))
		}
		fmt.Fprintf(stderr, "%s: %s; see '%s --help'\n", root.DisplayName(), text, command.CommandPath())
		return 2
	}
	fmt.Fprintf(stderr, "%s: %s%s\n", root.DisplayName(), text, Advice(err))
	return 3
}

// refuseUnknownShell turns the completion command for an unknown shell into a usage error. By default, cobra prints the
// help and exits with 0. The call must follow the calls that set the outputs, because cobra's command keeps the
// outputs.
func refuseUnknownShell(root *cobra.Command) {
	const completion = "completion"
	root.InitDefaultCompletionCmd(completion)
	for _, cmd := range root.Commands() {
		if cmd.Name() == completion {
			cmd.Args = cobra.NoArgs
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
}

// unknownCommand matches cobra's error about an unknown command.
var unknownCommand = regexp.MustCompile(`^unknown command "(.*)" for "`)

// names returns the names of a command's subcommands.
func names(of *cobra.Command) (all []string) {
	for _, c := range of.Commands() {
		if c.IsAvailableCommand() {
			all = append(all, c.Name())
		}
	}
	return all
}

// ExitStatus makes the program exit with this status, without a message.
type ExitStatus int

// Error implements error.
func (s ExitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// usageError is a usage error.
type usageError struct{ error }

// Usage converts an error to a usage error, with exit status 2.
func Usage(err error) error { return usageError{err} }

// ErrProblemFound makes the program exit with status 1, without a message.
var ErrProblemFound = errors.New("problem found")

// IsUsageError reports whether an error is a usage error. Cobra's own errors about commands and arguments have no type.
func IsUsageError(err error) bool {
	var usage usageError
	if errors.As(err, &usage) {
		return true
	}
	text := err.Error()
	return strings.HasPrefix(text, "unknown command") || strings.HasPrefix(text, "accepts ") ||
		strings.HasPrefix(text, "requires ")
}

// The groups of commands.
const (
	GroupNode          = "node"
	GroupPod           = "pod"
	GroupConfiguration = "configuration"
)

// Version is the program's version. main sets it from the version that is set at build time.
var Version = "devel"

// Advice returns the fix for an error of the node's files; "" if the error needs none.
func Advice(err error) string {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return ": free up space on the file system, and retry"
	case errors.Is(err, syscall.EROFS):
		return ": choose a writable path"
	case errors.Is(err, syscall.EXDEV): // spec/files/atomicfile, in a drop-in directory
		return ": the file's directory is a mount point, so write the file to another directory, and then move it to " +
			"the mount point"
	case !errors.Is(err, fs.ErrPermission):
		return ""
	case os.Geteuid() > 0:
		return ": run as root"
	case os.Geteuid() == 0:
		return ": root does not have permission either, so check the file's attributes (lsattr) and the SELinux or " +
			"AppArmor policy"
	}
	return "" // Windows has no root
}
