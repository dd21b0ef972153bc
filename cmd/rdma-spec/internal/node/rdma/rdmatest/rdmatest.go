// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rdmatest provides the kernel's side of NETLINK_RDMA for tests. It responds to each message like Linux 7.2.
package rdmatest

import (
	"encoding/binary"
	"syscall"
	"testing"

	"github.com/mdlayher/netlink"
	"github.com/mdlayher/netlink/nltest"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/rdma"
)

// HCA is an HCA with the contexts that processes have opened.
type HCA struct {
	Name     string
	Contexts []Context
	Old      bool // answers like Linux before 5.14
}

// Context is an open HCA. The IDs of the threads that created it and its objects are 0 if these threads have ended.
type Context struct {
	Thread, DomainThread, RegionThread uint32
	Regions                            []uint64 // length of each memory region, in bytes
	QueuePairs                         []uint8  // state of each queue pair
}

// Serve makes package rdma query a kernel with these HCAs until the test ends.
func Serve(t testing.TB, hcas ...HCA) {
	t.Helper()
	before := rdma.Dial
	t.Cleanup(func() { rdma.Dial = before })
	rdma.Dial = Kernel(hcas...)
}

// Kernel returns a function that opens a socket to a kernel with these HCAs.
func Kernel(hcas ...HCA) func() (*netlink.Conn, error) {
	return func() (*netlink.Conn, error) {
		return nltest.Dial(func(asked []netlink.Message) ([]netlink.Message, error) {
			const nldev = 5 << 10
			if len(asked) != 1 || asked[0].Header.Flags != netlink.Request|netlink.Dump || asked[0].Header.Type&^0x3ff != nldev {
				return failed(syscall.EOPNOTSUPP), nil
			}
			command := asked[0].Header.Type - nldev
			if command == 1 {
				list := new(message)
				for i, h := range hcas {
					list.end(list.attributes(uint32(i), h.Name))
				}
				return list.done(), nil
			}
			attributes, err := netlink.NewAttributeDecoder(asked[0].Data)
			if err != nil || !attributes.Next() {
				return failed(syscall.EINVAL), nil
			}
			index := attributes.Uint32()
			objects := hcas[index].objects(index)[command]
			if objects == nil || command == 22 && hcas[index].Old {
				return failed(syscall.EINVAL), nil
			}
			return objects.done(), nil
		}), nil
	}
}

// failed returns the response to a request that fails: the error, and the request's header.
func failed(errno syscall.Errno) []netlink.Message {
	data := binary.NativeEndian.AppendUint32(nil, -uint32(errno))
	return []netlink.Message{{Header: netlink.Header{Type: netlink.Error}, Data: append(data, make([]byte, 16)...)}}
}

// objects returns the responses about an HCA, by command. They list the kernel's own objects first, and then those of
// the HCA's contexts. IDs start at 0.
func (h HCA) objects(index uint32) map[netlink.HeaderType]*message {
	of := func(table, entry uint16) *message {
		return &message{index: index, name: h.Name, table: table, entry: entry}
	}
	contexts := of(86, 87)
	domains := of(46, 47)
	regions := of(40, 41)
	pairs := of(19, 20)
	kernel := func(e *netlink.AttributeEncoder) { e.String(29, "ib_core") }
	domains.add(func(e *netlink.AttributeEncoder) { e.Uint32(60, 0); kernel(e) })
	regions.add(func(e *netlink.AttributeEncoder) { e.Uint64(45, 1<<40); kernel(e) })
	pairs.add(func(e *netlink.AttributeEncoder) { e.Uint8(27, 3); kernel(e) })
	thread := func(e *netlink.AttributeEncoder, id uint32) {
		if id != 0 {
			e.Uint32(28, id)
		}
	}
	for i, c := range h.Contexts {
		id := uint32(i)
		domain := uint32(i + 1)
		contexts.add(func(e *netlink.AttributeEncoder) { e.Uint32(64, id); thread(e, c.Thread) })
		domains.add(func(e *netlink.AttributeEncoder) {
			e.Uint64(38, 2)
			e.Uint32(60, domain)
			e.Uint32(64, id)
			thread(e, c.DomainThread)
		})
		for n, length := range c.Regions {
			regions.add(func(e *netlink.AttributeEncoder) {
				e.Uint32(42, 0x1000)
				e.Uint32(43, 0x1000)
				e.Uint64(45, length)
				e.Uint32(63, uint32(n))
				e.Uint32(60, domain)
				thread(e, c.RegionThread)
			})
		}
		for _, state := range c.QueuePairs {
			pairs.add(func(e *netlink.AttributeEncoder) {
				e.Uint32(21, 17)
				e.Uint32(60, domain)
				thread(e, c.RegionThread)
				e.Uint8(27, state)
			})
		}
	}
	return map[netlink.HeaderType]*message{22: contexts, 14: domains, 13: regions, 10: pairs}
}

// message collects objects. When a netlink message is full, it begins another one.
type message struct {
	index        uint32
	name         string
	table, entry uint16
	entries      []netlink.Attribute
	size         int
	all          []netlink.Message
}

func (m *message) add(describe func(*netlink.AttributeEncoder)) {
	e := netlink.NewAttributeEncoder()
	describe(e)
	data, err := e.Encode()
	if err != nil {
		panic(err)
	}
	m.entries = append(m.entries, netlink.Attribute{Type: m.entry, Data: data})
	m.size += len(data) + 4
	if m.size > 30<<10 {
		m.flush()
	}
}

func (m *message) flush() {
	e := m.attributes(m.index, m.name)
	e.Bytes(m.table, nltest.MustMarshalAttributes(m.entries))
	m.end(e)
	m.entries = nil
	m.size = 0
}

func (*message) attributes(index uint32, name string) *netlink.AttributeEncoder {
	e := netlink.NewAttributeEncoder()
	e.Uint32(1, index)
	e.String(2, name)
	return e
}

func (m *message) end(e *netlink.AttributeEncoder) {
	data, err := e.Encode()
	if err != nil {
		panic(err)
	}
	m.all = append(m.all, netlink.Message{Header: netlink.Header{Flags: netlink.Multi}, Data: data})
}

// done returns all messages, followed by the message that ends the response.
func (m *message) done() []netlink.Message {
	if len(m.entries) > 0 {
		m.flush()
	}
	return append(m.all, netlink.Message{Header: netlink.Header{Type: netlink.Done, Flags: netlink.Multi},
		Data: make([]byte, 4)})
}
