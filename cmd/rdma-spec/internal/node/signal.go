// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"os/signal"
	"syscall"
)

// onSignal does something before a signal ends the program, unless it is stopped.
func onSignal(do func()) (stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		if s, on := <-signals; on {
			do()
			signal.Reset()
			number, _ := s.(syscall.Signal)
			_ = syscall.Kill(os.Getpid(), number) // it ends the program, as without a handler
		}
	}()
	return func() {
		signal.Stop(signals)
		close(signals)
	}
}
