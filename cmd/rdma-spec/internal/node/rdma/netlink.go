// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"context"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// nldev is the client of NETLINK_RDMA that has the book: RDMA_NL_NLDEV of the kernel's rdma/rdma_netlink.h, as the
// numbers below.
const nldev = 5

// The commands that list objects. All but the first list those of one HCA.
const (
	getDevices    = 1
	getQueuePairs = 10
	getRegions    = 13
	getDomains    = 14
	getContexts   = 22
)

// The attributes of answers that are read. An object is an entry of a table.
const (
	attrDevice  = 1
	attrName    = 2
	attrState   = 27
	attrThread  = 28
	attrLength  = 45
	attrDomain  = 60
	attrContext = 64
)

// nested are the attributes that have others: tables of queue pairs, memory regions, protection domains, and contexts.
// The number after that of a table is an entry's.
var nested = map[uint16]bool{19: true, 40: true, 46: true, 86: true}

// object is an HCA, or an object of one, as its attributes describe it. The kernel's own objects are in no context, and
// name no protection domain.
type object struct {
	device, thread  uint32
	domain, context int64 // none, or from 0 on
	length          uint64
	state           uint8
	name            string
}

const none = -1

// kernel is a socket that answers.
type kernel struct{ *netlink.Conn }

// Dial opens the socket. Tests replay a kernel's answers.
var Dial = func() (*netlink.Conn, error) {
	// Into a large buffer, the kernel writes many objects at once. For each message it goes through all objects before.
	return netlink.Dial(unix.NETLINK_RDMA, &netlink.Config{MessageBufferSize: 64 << 10})
}

func dial(ctx context.Context) (*kernel, error) {
	conn, err := Dial()
	if err != nil {
		return nil, fmt.Errorf("the kernel does not speak of RDMA: %w", err)
	}
	if deadline, bounded := ctx.Deadline(); bounded {
		_ = conn.SetReadDeadline(deadline) // the caller does not wait longer
	}
	return &kernel{conn}, nil
}

func (k *kernel) close() { _ = k.Close() } // it was only read

// dump asks for all objects of a kind, of an HCA if one is given, and hands them over one by one. At no time are more
// in memory than a message has.
func (k *kernel) dump(command netlink.HeaderType, device *uint32, each func(object)) error {
	request := netlink.NewAttributeEncoder()
	if device != nil {
		request.Uint32(attrDevice, *device)
	}
	data, err := request.Encode()
	if err != nil {
		return err
	}
	_, err = k.Send(netlink.Message{Data: data,
		Header: netlink.Header{Type: nldev<<10 | command, Flags: netlink.Request | netlink.Dump}})
	if err != nil {
		return err
	}
	for answer, err := range k.ReceiveIter() {
		if err != nil {
			return err
		}
		attributes, err := netlink.NewAttributeDecoder(answer.Data)
		if err != nil {
			return err
		}
		if err := decode(attributes, device == nil, each); err != nil {
			return err
		}
	}
	return nil
}

// decode hands over the object that attributes describe, if they do, and those in the tables among them.
func decode(attributes *netlink.AttributeDecoder, describe bool, each func(object)) error {
	o := object{domain: none, context: none}
	for attributes.Next() {
		switch kind := attributes.Type(); {
		case nested[kind]:
			attributes.Nested(func(table *netlink.AttributeDecoder) error {
				for table.Next() {
					table.Nested(func(entry *netlink.AttributeDecoder) error { return decode(entry, true, each) })
				}
				return nil
			})
		case !describe:
		case kind == attrDevice:
			o.device = attributes.Uint32()
		case kind == attrName:
			o.name = attributes.String()
		case kind == attrState:
			o.state = attributes.Uint8()
		case kind == attrThread:
			o.thread = attributes.Uint32()
		case kind == attrLength:
			o.length = attributes.Uint64()
		case kind == attrDomain:
			o.domain = int64(attributes.Uint32())
		case kind == attrContext:
			o.context = int64(attributes.Uint32())
		}
	}
	if err := attributes.Err(); err != nil || !describe {
		return err
	}
	each(o)
	return nil
}
