// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package wiretest fills messages with random values, so that a test also covers fields that the test's author did not
// consider. The package does not depend on a message type.
package wiretest

import (
	"math/rand/v2"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Fill sets about half of a message's fields, including those in nested messages. Lists and maps get up to three
// elements, and strings are chosen from the given words.
func Fill(message proto.Message, random *rand.Rand, words []string) {
	(&filler{random, words}).fill(message.ProtoReflect())
}

type filler struct {
	random *rand.Rand
	words  []string
}

func (r *filler) fill(message protoreflect.Message) {
	fields := message.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if r.random.IntN(2) == 0 {
			continue
		}
		switch {
		case f.IsMap():
			r.fillMap(message, f)
		case f.IsList():
			list := message.Mutable(f).List()
			for range r.random.IntN(4) {
				if f.Message() == nil {
					list.Append(r.scalar(f))
					continue
				}
				r.fill(list.AppendMutable().Message())
			}
		case f.Message() != nil:
			r.fill(message.Mutable(f).Message())
		default:
			message.Set(f, r.scalar(f))
		}
	}
}

// fillMap adds elements to a map from strings to strings. Other maps stay empty.
func (r *filler) fillMap(message protoreflect.Message, f protoreflect.FieldDescriptor) {
	if f.MapKey().Kind() != protoreflect.StringKind || f.MapValue().Kind() != protoreflect.StringKind {
		return
	}
	for range r.random.IntN(4) {
		message.Mutable(f).Map().Set(r.scalar(f.MapKey()).MapKey(), r.scalar(f.MapValue()))
	}
}

func (r *filler) scalar(f protoreflect.FieldDescriptor) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(r.words[r.random.IntN(len(r.words))])
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(r.random.Int32())
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(r.random.Uint32())
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(r.random.Int64())
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(r.random.Uint64())
	default:
		return f.Default()
	}
}
