// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package change

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

func TestOverwritten(t *testing.T) {
	for name, test := range map[string]struct {
		then func(t *testing.T, n node)
		want []Overwriting
	}{
		"untouched": {func(*testing.T, node) {}, nil},
		"changed": {func(_ *testing.T, n node) { n.set(map[string]string{"a": "theirs"}) },
			[]Overwriting{{Path: "/node/a", Feature: "handler rdma"}}},
		"restored to what it was": {func(_ *testing.T, n node) { n.set(map[string]string{"a": "old"}) },
			[]Overwriting{{Path: "/node/a", Feature: "handler rdma"}}},
		"removed": {func(t *testing.T, n node) {
			t.Helper()
			if err := os.Remove(n.path("b")); err != nil {
				t.Fatal(err)
			}
		}, []Overwriting{{Path: "/node/b", Feature: "nri", Missing: true}}},
		"reverted": {func(t *testing.T, n node) {
			t.Helper()
			if err := n.revert("nri", "handler rdma"); err != nil {
				t.Fatal(err)
			}
		}, nil},
		"rewritten by configure": {func(_ *testing.T, n node) { n.apply("nri", "b", "newer") }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, map[string]string{"a": "old"})
			n.apply("nri", "a", "new", "b", "new")
			n.apply("handler rdma", "a", "newer")
			began := time.Now().Add(-time.Minute)
			test.then(t, n)
			copied := filepath.Join(scratch.Folder(t), "copy of the node")
			if err := os.CopyFS(copied, os.DirFS(n.root)); err != nil {
				t.Fatal(err)
			}
			for _, root := range []string{n.root, copied} {
				got, err := ReadConfigured(root)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(test.want, got.Overwritten, cmpopts.IgnoreFields(Overwriting{}, "Since")); diff != "" {
					t.Errorf("%s (-want +got):\n%s", root, diff)
				}
				for _, o := range got.Overwritten {
					if o.Since.Before(began) || o.Since.After(time.Now()) {
						t.Errorf("%s was written %s", o.Path, o.Since)
					}
				}
			}
		})
	}
}

func TestOverwrittenOnANodeWithoutConfigure(t *testing.T) {
	if got, err := ReadConfigured(scratch.Folder(t)); err != nil || len(got.Overwritten) > 0 {
		t.Errorf("%v, %v", got, err)
	}
}

func TestOverwritingString(t *testing.T) {
	o := Overwriting{Path: "/etc/containerd/config.toml", Feature: "nri", Since: time.Date(2026, 11,
		22, 7, 30, 0, 0, time.UTC)}
	want := "another tool has changed /etc/containerd/config.toml since rdma-spec configure nri wrote it on 2026-11-22"
	if got := o.String(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	o.Missing = true
	want = "another tool has removed /etc/containerd/config.toml since rdma-spec configure nri wrote it on 2026-11-22"
	if got := o.String(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
