// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/node/wire"
)

type frame struct {
	Kind    wire.Kind
	Payload string
}

func TestFrames(t *testing.T) {
	sent := []frame{{wire.Ready, ""}, {wire.Stdout, "one\ntwo"}, {wire.Stderr, strings.Repeat("x", 1<<20)},
		{wire.ExitJob, `{"status":7}`}}
	var stream bytes.Buffer
	for _, f := range sent {
		if err := wire.Write(&stream, f.Kind, []byte(f.Payload)); err != nil {
			t.Fatal(err)
		}
	}
	var received []frame
	for {
		kind, payload, err := wire.Read(&stream)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		received = append(received, frame{kind, string(payload)})
	}
	if diff := cmp.Diff(sent, received); diff != "" {
		t.Errorf("(-sent +received)\n%s", diff)
	}
}

func TestBrokenFrames(t *testing.T) {
	for _, test := range []struct {
		name, stream string
		want         error // nil means any error
	}{
		{"nothing", "", io.EOF},
		{"half a head", "\x06\x00", io.ErrUnexpectedEOF},
		{"no payload", "\x06\x00\x00\x00\x01", io.ErrUnexpectedEOF},
		{"half a payload", "\x06\x00\x00\x00\x02x", io.ErrUnexpectedEOF},
		{"noise", "login: root", nil},
		{"too long", "\x06\xff\xff\xff\xff", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, _, err := wire.Read(strings.NewReader(test.stream))
			if err == nil || test.want != nil && !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("\x06\x00\x00\x00\x02xy"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		kind, payload, err := wire.Read(bytes.NewReader(stream))
		if err != nil {
			return
		}
		var again bytes.Buffer
		if err := wire.Write(&again, kind, payload); err != nil {
			t.Fatal(err)
		}
		if !bytes.HasPrefix(stream, again.Bytes()) {
			t.Errorf("%q was read as %q", stream, again.Bytes())
		}
	})
}
