// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"os"
	"os/signal"
	"syscall"
)

// onSignal calls do before a signal ends the program, unless the caller calls stop first. A stop after the signal
// blocks until the program ends. SIGPIPE ends the program if its output has no reader.
func onSignal(do func()) (stop func()) {
	signals := make(chan os.Signal, 1)
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE} {
		if !signal.Ignored(s) { // nohup ignores SIGHUP
			signal.Notify(signals, s)
		}
	}
	stopped := make(chan struct{})
	go func() {
		s, on := <-signals
		if !on {
			close(stopped)
			return
		}
		do()
		number, _ := s.(syscall.Signal)
		if number == syscall.SIGPIPE { // Go ignores a SIGPIPE that no write caused
			os.Exit(128 + int(number))
		}
		signal.Reset()
		_ = syscall.Kill(os.Getpid(), number) // ends the program, as without a handler
	}()
	return func() {
		signal.Stop(signals)
		close(signals)
		<-stopped
	}
}
