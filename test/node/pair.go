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

// cable is one end of what joins two nodes: a second network card, on which
// rxe0 lies instead of on the first one.
type cable struct {
	number int // of the node, 1 or 2
	end    *os.File
}

// mac is the card's address.
func (c *cable) mac() string { return fmt.Sprintf("52:54:00:00:01:%02x", c.number) }

// netdev is the card's arguments for QEMU, which has the cable's end as a
// descriptor.
func (c *cable) netdev(descriptor int) []string {
	return []string{
		"-netdev", fmt.Sprintf("socket,id=cable,fd=%d", descriptor),
		"-device", "virtio-net-pci,netdev=cable,romfile=,mac=" + c.mac(),
	}
}

// PairAddress is the address of a node of a pair, 1 or 2, on its rxe0.
func PairAddress(number int) string { return fmt.Sprintf("10.1.0.%d", number) }

// BootPair starts two nodes that are joined by a cable between their rxe0; they
// are called rdma-node-1 and rdma-node-2. On an error both are ended; those that
// are not nil have a console to show.
func BootPair(ctx context.Context, parts PartSet, options Options) (pair [2]*Node, err error) {
	options = options.withDefaults()
	if options.Machine, err = chooseMachine(ctx, parts, options); err != nil {
		return pair, err
	}
	kind := syscall.SOCK_STREAM // QEMU sends each frame with its length
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
			defer func() { _ = joined.cable.end.Close() }() // QEMU has its own by then
			pair[i], problems[i] = boot(ctx, parts, joined)
		})
	}
	booting.Wait()
	if err := errors.Join(problems[:]...); err != nil {
		for _, n := range pair {
			if n != nil {
				_ = n.Close() // the error that counts is there already
			}
		}
		return pair, err
	}
	return pair, nil
}
