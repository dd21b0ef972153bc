// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/rdma-spec/rdma-spec/plugin/wire/wiretest"
)

// words are some that are chosen and some that are not; one has a length that takes two bytes.
var words = []string{"", "a", "ab=1", "b", "ba", strings.Repeat("a long word", 20)}

// prefixed chooses elements that begin with "a".
func prefixed(element []byte) bool { return bytes.HasPrefix(element, []byte("a")) }

// paths have each kind of choice: whole fields, fields of fields, of lists, elements of a list and of a map.
var paths = Paths{
	"pod.id": nil, "pod.annotations": prefixed, "pod.linux.namespaces.type": nil, "pod.pid": nil,
	"container.name": nil, "container.env": prefixed, "container.linux.devices": nil, "container.rlimits": nil,
	"container.linux.resources.memory.limit": nil, "container.linux.resources.devices.allow": nil,
}

// TestKeep compares what is kept of random messages with the same fields of the decoded message.
func TestKeep(t *testing.T) {
	fields := New(&api.CreateContainerRequest{}, paths)
	for seed := range uint64(500) {
		message := &api.CreateContainerRequest{}
		wiretest.Fill(message, rand.New(rand.NewPCG(seed, 0)), words)
		encoded, err := proto.Marshal(message)
		if err != nil {
			t.Fatal(err)
		}
		kept, err := fields.Keep(nil, encoded)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		got := &api.CreateContainerRequest{}
		if err := proto.Unmarshal(kept, got); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		prune(message.ProtoReflect(), "")
		if diff := cmp.Diff(message, got, protocmp.Transform()); diff != "" {
			t.Fatalf("seed %d (-want +got):\n%s", seed, diff)
		}
	}
}

// TestKeepDamaged cuts a message at each of its bytes: inside a field that has to be looked into, too.
func TestKeepDamaged(t *testing.T) {
	fields := New(&api.CreateContainerRequest{}, paths)
	message := &api.CreateContainerRequest{Container: &api.Container{Name: "main", Env: []string{"a=b"},
		Linux: &api.LinuxContainer{Resources: &api.LinuxResources{Memory: &api.LinuxMemory{Limit: api.Int64(int64(5))}}}}}
	encoded, err := proto.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n < len(encoded); n++ {
		if _, err := fields.Keep(nil, encoded[:n]); err == nil {
			t.Errorf("%d of %d bytes are kept without an error", n, len(encoded))
		}
	}
	for _, damaged := range []string{"\x12\x02\x5a\x05", "\x0a\x02\x32\x01", "\x0a\x04\x32\x02\x0a\x09", "\x00", "\x0a"} {
		if _, err := fields.Keep(nil, []byte(damaged)); err == nil {
			t.Errorf("%q is kept without an error", damaged)
		}
	}
}

// TestNewUnknownField checks that a path that names nothing is found when the program starts.
func TestNewUnknownField(t *testing.T) {
	defer func() {
		if found := recover(); found == nil {
			t.Error("a field that does not exist is taken")
		}
	}()
	New(&api.Container{}, Paths{"linux.device": nil})
}

// TestKeepAllocatesNothing checks that a walk costs no more than its bytes.
func TestKeepAllocatesNothing(t *testing.T) {
	fields := New(&api.CreateContainerRequest{}, paths)
	message := &api.CreateContainerRequest{}
	wiretest.Fill(message, rand.New(rand.NewPCG(1, 1)), words)
	encoded, err := proto.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	into := make([]byte, 0, len(encoded))
	if allocations := testing.AllocsPerRun(100, func() { _, _ = fields.Keep(into, encoded) }); allocations != 0 {
		t.Errorf("a walk allocates %v times", allocations)
	}
}

// FuzzKeep checks for any bytes that nothing panics, that nothing is kept that was not there, and that what protobuf
// decodes of the whole it decodes of what is kept.
func FuzzKeep(f *testing.F) {
	fields := New(&api.CreateContainerRequest{}, paths)
	for seed := range uint64(4) {
		message := &api.CreateContainerRequest{}
		wiretest.Fill(message, rand.New(rand.NewPCG(seed, 2)), words)
		encoded, _ := proto.Marshal(message)
		f.Add(encoded)
	}
	f.Add([]byte("\x0a\x06\x32\x04\x0a\x00\x0a\x00"))
	f.Fuzz(func(t *testing.T, encoded []byte) {
		kept, err := fields.Keep(nil, encoded)
		whole := &api.CreateContainerRequest{}
		if proto.Unmarshal(encoded, whole) != nil {
			return
		}
		if err != nil {
			t.Fatalf("protobuf decodes it, and the walk says: %v", err)
		}
		got := &api.CreateContainerRequest{}
		if err := proto.Unmarshal(kept, got); err != nil {
			t.Fatal(err)
		}
		prune(whole.ProtoReflect(), "")
		prune(got.ProtoReflect(), "") // of unknown fields
		if !proto.Equal(whole, got) {
			t.Errorf("want %v, got %v", whole, got)
		}
	})
}

// prune clears the fields of a message that paths do not name.
func prune(message protoreflect.Message, at string) {
	message.SetUnknown(nil)
	message.Range(func(f protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		path := at + string(f.Name())
		chosen, whole := paths[path]
		inside := false
		for named := range paths {
			inside = inside || strings.HasPrefix(named, path+".")
		}
		switch {
		case whole && chosen == nil:
			discard(f, value)
		case whole && f.IsMap():
			value.Map().Range(func(key protoreflect.MapKey, _ protoreflect.Value) bool {
				if !chosen([]byte(key.String())) {
					value.Map().Clear(key)
				}
				return true
			})
			if value.Map().Len() == 0 {
				message.Clear(f)
			}
		case whole:
			kept := message.NewField(f).List()
			for i := range value.List().Len() {
				if element := value.List().Get(i); chosen([]byte(element.String())) {
					kept.Append(element)
				}
			}
			message.Set(f, protoreflect.ValueOfList(kept))
		case !inside:
			message.Clear(f)
		case f.IsList():
			for i := range value.List().Len() {
				prune(value.List().Get(i).Message(), path+".")
			}
		default:
			prune(value.Message(), path+".")
		}
		return true
	})
}

// discard removes the unknown fields of a field that is kept whole.
func discard(f protoreflect.FieldDescriptor, value protoreflect.Value) {
	switch {
	case f.Message() == nil || f.IsMap():
	case f.IsList():
		for i := range value.List().Len() {
			discardOf(value.List().Get(i).Message())
		}
	default:
		discardOf(value.Message())
	}
}

func discardOf(message protoreflect.Message) {
	message.SetUnknown(nil)
	message.Range(func(f protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		discard(f, value)
		return true
	})
}
