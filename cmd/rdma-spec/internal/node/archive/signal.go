// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"os"
	"os/signal"
	"syscall"
)

// onSignal does something before a signal ends the program, unless it is stopped. A stop that comes too late waits for
// the end. SIGPIPE is what ends it if nobody reads its output any longer.
func onSignal(do func()) (stop func()) {
	signals := make(chan os.Signal, 1)
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE} {
		if !signal.Ignored(s) { // nohup has SIGHUP ignored
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
		if number == syscall.SIGPIPE { // which Go ignores where a write did not cause it
			os.Exit(128 + int(number))
		}
		signal.Reset()
		_ = syscall.Kill(os.Getpid(), number) // it ends the program, as without a handler
	}()
	return func() {
		signal.Stop(signals)
		close(signals)
		<-stopped
	}
}
