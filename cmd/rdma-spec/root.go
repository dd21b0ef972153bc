// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/archive"
)

const (
	rootFlag = "root"
	// readsArchives marks the flag of a command that only reads the node, as an annotation.
	readsArchives = "reads-archives"
)

// addRootFlag adds the flag --root to a command that only reads the node: it names a folder, or an archive of rdma-spec collect. The
// text says what is read there: "the node's sys and dev".
func addRootFlag(f *pflag.FlagSet, root *string, what string) {
	f.StringVar(root, rootFlag, "/", "read "+what+" below this `DIR`, or from FILE.tar.gz of rdma-spec collect")
	if err := f.SetAnnotation(rootFlag, readsArchives, nil); err != nil {
		panic(err) // the flag was added a line above
	}
}

// openRoot unpacks the archive that the command's --root names, if it names one, and sets the flag to the temporary folder. release
// removes that.
func openRoot(cmd *cobra.Command) (release func() error, err error) {
	release = func() error { return nil }
	flag := cmd.Flags().Lookup(rootFlag)
	if flag == nil {
		return release, nil
	}
	if _, reads := flag.Annotations[readsArchives]; !reads {
		return release, nil
	}
	folder, remove, err := archive.Open(flag.Value.String())
	if err != nil {
		return release, fmt.Errorf("--root: %w", err)
	}
	if folder == flag.Value.String() {
		return release, nil
	}
	stop := onSignal(func() { _ = remove() }) // the program ends
	return func() error {
		stop()
		return remove()
	}, flag.Value.Set(folder)
}

// onSignal does something before a signal ends the program, unless it is stopped.
func onSignal(do func()) (stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	stopped := make(chan struct{})
	go func() {
		select {
		case <-stopped:
		case s := <-signals:
			do()
			signal.Reset()
			if number, ok := s.(syscall.Signal); ok {
				_ = syscall.Kill(os.Getpid(), number) // it ends the program, as without a handler
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		close(stopped)
	}
}
