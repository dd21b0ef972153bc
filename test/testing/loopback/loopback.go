// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package loopback gives tests addresses for programs that listen at one that they are told.
package loopback

import (
	"fmt"
	"os"
	"sync/atomic"
)

// port is the last one that was given, below those that the kernel chooses.
var port atomic.Uint32

// Address returns an address, as in 127.64.3.7:9001, that nobody else on this machine gets: each process has an IP
// address of its own, and hands each of its ports out once. A port of 127.0.0.1 that was free a moment ago may be the
// one that the kernel gives to the next client.
func Address() string {
	process := os.Getpid() // 22 bits
	return fmt.Sprintf("127.%d.%d.%d:%d", 64+process>>16, process>>8&0xff, process&0xff, 9000+port.Add(1))
}
