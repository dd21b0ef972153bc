// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package wire reduces an encoded protobuf message to the fields that are read. Decoding a kubelet's container, with
// its mounts, environment, and labels, takes 15 times as long as scanning it. The package depends on protobuf's
// encoding (https://protobuf.dev/programming-guides/encoding), but on no particular message.
package wire

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Paths are the names of the fields that are read: "id", or "linux.devices" for a nested field. The function selects
// elements of a list of strings by their value, or of a map by their key; nil selects all.
type Paths map[string]func(element []byte) bool

// Below returns the paths relative to the message that contains them in a field.
func (p Paths) Below(field string) Paths {
	below := make(Paths, len(p))
	for path, chosen := range p {
		below[field+"."+path] = chosen
	}
	return below
}

// Fields are the fields of one message type that are read. They are safe for concurrent use.
type Fields struct {
	byNumber []field // indexed by field number
}

type field struct {
	read   bool
	of     *Fields                   // the fields to read in a nested message; nil for the whole field
	chosen func(element []byte) bool // nil for every element
	isMap  bool
}

// New returns the fields of a message type that any of the paths name. It panics if the type has no such field, since
// that is a bug.
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

// Keep appends the fields of an encoded message that are read to dst, in their order. It returns an error if the
// message, or a field that it scans, is malformed. It allocates nothing if dst has the message's capacity.
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

// key returns the key of an encoded map element. If it has several keys, the last one applies; if it has none, the key
// is empty.
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

// setLength overwrites a length with a smaller one in the same bytes. A varint may have more bytes than it needs.
func setLength(at []byte, length int) {
	for i := range at {
		at[i] = byte(length)&0x7f | 0x80
		length >>= 7
	}
	at[len(at)-1] &^= 0x80
}
