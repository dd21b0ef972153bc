// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package loopback provides addresses for programs that a test tells where to listen.
package loopback

import (
	"fmt"
	"os"
	"sync/atomic"
)

// port is the number of addresses that were returned. Ports are below the range from which the kernel chooses ports for
// clients.
var port atomic.Uint32

// Address returns an address, such as 127.64.3.7:9001, that no other program on this machine uses. Each process has its
// own IP address, and returns each of its ports once. A free port of 127.0.0.1 would not be safe, because the kernel
// may give it to the next client.
func Address() string {
	process := os.Getpid() // has at most 22 bits
	return fmt.Sprintf("127.%d.%d.%d:%d", 64+process>>16, process>>8&0xff, process&0xff, 9000+port.Add(1))
}
