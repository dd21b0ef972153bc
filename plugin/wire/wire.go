// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package wire reduces an encoded protobuf message to the fields that the program reads. Decoding a Kubernetes
// container, with its mounts, environment, and labels, takes 15 times as long as scanning the encoded message. The
// package depends on protobuf's encoding (https://protobuf.dev/programming-guides/encoding), but not on a particular
// message.
package wire

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Paths contains the names of the fields that the program reads: "id", or "linux.devices" for a nested field. The
// function selects elements of a list of strings by their value, or elements of a map by their key. If the function is
// nil, all elements are selected.
type Paths map[string]func(element []byte) bool

// Below returns the paths relative to the message that contains them in a field.
func (p Paths) Below(field string) Paths {
	below := make(Paths, len(p))
	for path, chosen := range p {
		below[field+"."+path] = chosen
	}
	return below
}

// Fields contains the fields of one message type that the program reads. Fields is safe for concurrent use.
type Fields struct {
	byNumber []field // indexed by field number
}

type field struct {
	read   bool
	of     *Fields                   // the fields to read in a nested message; nil for the whole field
	chosen func(element []byte) bool // nil for every element
	isMap  bool
}

// New returns the fields of a message type that the paths name. New panics if the type lacks a named field, since a
// wrong name is a bug.
func New(message proto.Message, paths ...Paths) *Fields {
	f := &Fields{}
	for _, some := range paths {
		for path, chosen := range some {
			f.add(message.ProtoReflect().Descriptor(), path, chosen)
		}
	}
	return f
}

func (f *Fields) add(message protoreflect.MessageDescriptor, path string, chosen func([]byte) bool) {
	name, rest, deeper := strings.Cut(path, ".")
	descriptor := message.Fields().ByName(protoreflect.Name(name))
	if descriptor == nil {
		panic(fmt.Sprintf("%s has no field %s", message.FullName(), name))
	}
	number := int(descriptor.Number())
	for len(f.byNumber) <= number {
		f.byNumber = append(f.byNumber, field{})
	}
	at := &f.byNumber[number]
	if !deeper {
		*at = field{read: true, chosen: chosen, isMap: descriptor.IsMap()}
		return
	}
	if at.read && at.of == nil {
		return // the whole field is read already
	}
	if at.of == nil {
		*at = field{read: true, of: &Fields{}}
	}
	at.of.add(descriptor.Message(), rest, chosen)
}

// Keep appends the selected fields of an encoded message to dst, in the message's order. Keep returns an error if the
// message, or a field that Keep scans, is malformed. If dst has the message's capacity, Keep allocates no memory.
func (f *Fields) Keep(dst, message []byte) ([]byte, error) {
	for len(message) > 0 {
		number, kind, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return nil, protowire.ParseError(tag)
		}
		size := protowire.ConsumeFieldValue(number, kind, message[tag:])
		if size < 0 {
			return nil, protowire.ParseError(size)
		}
		whole := message[:tag+size]
		message = message[tag+size:]
		if int(number) >= len(f.byNumber) || !f.byNumber[number].read {
			continue
		}
		var err error
		if dst, err = f.byNumber[number].keep(dst, whole, tag, kind); err != nil {
			return nil, err
		}
	}
	return dst, nil
}

// keep appends one encoded field whose tag has the given length.
func (f *field) keep(dst, whole []byte, tag int, kind protowire.Type) ([]byte, error) {
	if kind != protowire.BytesType || f.of == nil && f.chosen == nil {
		return append(dst, whole...), nil
	}
	value, _ := protowire.ConsumeBytes(whole[tag:])
	if f.of == nil {
		element := value
		if f.isMap {
			var err error
			if element, err = key(value); err != nil {
				return nil, err
			}
		}
		if f.chosen(element) {
			dst = append(dst, whole...)
		}
		return dst, nil
	}
	start := len(dst)
	dst = append(dst, whole[:len(whole)-len(value)]...)
	begin := len(dst)
	dst, err := f.of.Keep(dst, value)
	if err != nil {
		return nil, err
	}
	setLength(dst[start+tag:begin], len(dst)-begin)
	return dst, nil
}

// key returns the key of an encoded map element. If the element has several keys, the last key applies. If the element
// has no key, the result is empty.
func key(element []byte) (found []byte, err error) {
	for len(element) > 0 {
		number, kind, tag := protowire.ConsumeTag(element)
		if tag < 0 {
			return nil, protowire.ParseError(tag)
		}
		size := protowire.ConsumeFieldValue(number, kind, element[tag:])
		if size < 0 {
			return nil, protowire.ParseError(size)
		}
		if number == 1 && kind == protowire.BytesType {
			found, _ = protowire.ConsumeBytes(element[tag:])
		}
		element = element[tag+size:]
	}
	return found, nil
}

// setLength overwrites an encoded length with a smaller length in the same bytes. A varint can have more bytes than its
// value needs.
func setLength(at []byte, length int) {
	for i := range at {
		at[i] = byte(length)&0x7f | 0x80
		length >>= 7
	}
	at[len(at)-1] &^= 0x80
}
