// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
)

// cable is one end of the connection between two nodes: a second network card. rxe0 is on this card instead of the
// first one.
type cable struct {
	number int // the node's number, 1 or 2
	end    *os.File
}

// mac returns the card's MAC address.
func (c *cable) mac() string { return fmt.Sprintf("52:54:00:00:01:%02x", c.number) }

// netdev returns QEMU's arguments for the card. QEMU has the cable's end as a file descriptor.
func (c *cable) netdev(descriptor int) []string {
	return []string{
		"-netdev", fmt.Sprintf("socket,id=cable,fd=%d", descriptor),
		"-device", "virtio-net-pci,netdev=cable,romfile=,mac=" + c.mac(),
	}
}

// PairAddress returns the address of rxe0 on a node of a pair, 1 or 2.
func PairAddress(number int) string { return fmt.Sprintf("10.1.0.%d", number) }

// BootPair starts two nodes, rdma-node-1 and rdma-node-2, which are connected by a cable between their rxe0. If
// BootPair returns an error, both nodes have ended; a node that is not nil has a console to show.
func BootPair(ctx context.Context, parts PartSet, options Options) (pair [2]*Node, err error) {
	options = options.withDefaults()
	if options.Machine, err = chooseMachine(ctx, parts, options); err != nil {
		return pair, err
	}
	kind := syscall.SOCK_STREAM // QEMU sends each frame's length before the frame
	if options.Machine == "uml" {
		kind = syscall.SOCK_DGRAM
	}
	ends, err := syscall.Socketpair(syscall.AF_UNIX, kind|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return pair, fmt.Errorf("make the cable between the nodes: %w", err)
	}
	var booting sync.WaitGroup
	var problems [2]error
	for i, end := range ends {
		joined := options
		joined.cable = &cable{number: i + 1, end: os.NewFile(uintptr(end), "cable")}
		booting.Go(func() {
			defer func() { _ = joined.cable.end.Close() }() // QEMU has its own copy by then
			pair[i], problems[i] = boot(ctx, parts, joined)
		})
	}
	booting.Wait()
	if err := errors.Join(problems[:]...); err != nil {
		for _, n := range pair {
			if n != nil {
				_ = n.Close() // the important error was already returned
			}
		}
		return pair, err
	}
	return pair, nil
}
