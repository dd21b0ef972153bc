// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package rdma

import "github.com/mdlayher/netlink"

// Constants of the kernel's rdma/rdma_netlink.h: the client that provides the inventory, its commands, and the
// attributes that are read from its responses.
const (
	nldev                                                                            = 5
	getDevices, getQueuePairs, getRegions, getDomains, getContexts                   = 1, 10, 13, 14, 22
	attrDevice, attrName, attrState, attrThread, attrLength, attrDomain, attrContext = 1, 2, 27, 28, 45, 60, 64
	// tables of queue pairs, memory regions, protection domains, and contexts, each followed by its entry
	tableQ, entryQ, tableR, entryR, tableD, entryD, tableC, entryC = 19, 20, 40, 41, 46, 47, 86, 87
)

// object is an HCA, or an object of an HCA, as described by its attributes. The kernel's own objects have no context
// and no protection domain.
type object struct {
	device, thread  uint32
	domain, context int64 // none, or from 0 on
	length          uint64
	state           uint8
	name            string
}

const none = -1

// dump requests all objects of a kind, and calls each for each of them. If the kind is not HCAs, the objects belong to
// one HCA. At most the objects of one message are in memory.
func dump(conn *netlink.Conn, command netlink.HeaderType, device uint32, each func(object)) error {
	request := netlink.NewAttributeEncoder()
	request.Uint32(attrDevice, device)
	data, err := request.Encode()
	if err != nil {
		return err
	}
	header := netlink.Header{Type: nldev<<10 | command, Flags: netlink.Request | netlink.Dump}
	if _, err := conn.Send(netlink.Message{Header: header, Data: data}); err != nil {
		return err
	}
	for answer, err := range conn.ReceiveIter() {
		if err != nil {
			return err
		}
		attributes, err := netlink.NewAttributeDecoder(answer.Data)
		if err != nil {
			return err
		}
		if err := decode(attributes, each); err != nil {
			return err
		}
	}
	return nil
}

// decode calls each for the object that the attributes describe, and for the objects in nested tables. It also calls
// each for tables and their parents, but these have no relevant attributes.
func decode(attributes *netlink.AttributeDecoder, each func(object)) error {
	o := object{domain: none, context: none}
	for attributes.Next() {
		switch attributes.Type() {
		case tableQ, entryQ, tableR, entryR, tableD, entryD, tableC, entryC:
			attributes.Nested(func(inner *netlink.AttributeDecoder) error { return decode(inner, each) })
		case attrDevice:
			o.device = attributes.Uint32()
		case attrName:
			o.name = attributes.String()
		case attrState:
			o.state = attributes.Uint8()
		case attrThread:
			o.thread = attributes.Uint32()
		case attrLength:
			o.length = attributes.Uint64()
		case attrDomain:
			o.domain = int64(attributes.Uint32())
		case attrContext:
			o.context = int64(attributes.Uint32())
		}
	}
	each(o)
	return attributes.Err()
}
