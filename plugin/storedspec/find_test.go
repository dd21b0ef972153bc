// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package storedspec

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// listen makes a socket, below a root that must be short: a socket's path has 107 bytes at most.
func listen(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
}

func TestFind(t *testing.T) {
	const (
		usual = "/run/containerd/containerd.sock"
		k3s   = "/run/k3s/containerd/containerd.sock"
		snap  = "/var/snap/microk8s/common/run/containerd.sock"
		k0s   = "/run/k0s/containerd.sock"
	)
	tests := []struct {
		name     string
		sockets  []string
		files    []string
		address  string // below the root
		want     string
		possible bool
	}{
		{name: "nothing"},
		{name: "usual", sockets: []string{usual}, want: usual, possible: true},
		{name: "k3s or RKE2", sockets: []string{k3s}, want: k3s, possible: true},
		{name: "MicroK8s", sockets: []string{snap}, want: snap, possible: true},
		{name: "k0s", sockets: []string{k0s}, want: k0s, possible: true},
		{name: "usual before others", sockets: []string{k3s, usual}, want: usual, possible: true},
		{name: "a file is no socket", files: []string{usual}, sockets: []string{k3s}, want: k3s, possible: true},
		{name: "not there yet", files: []string{"/run/k3s/containerd/config"}, possible: true},
		{name: "the address wins", sockets: []string{usual, "/opt/c.sock"}, address: "/opt/c.sock", want: "/opt/c.sock", possible: true},
		{name: "the address alone counts", sockets: []string{usual}, address: "/opt/c.sock"},
		{name: "the address, not there yet", files: []string{"/opt/x"}, address: "/opt/c.sock", possible: true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			root, err := os.MkdirTemp("", "f")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(root) })
			for _, s := range test.sockets {
				listen(t, root+s)
			}
			for _, f := range test.files {
				if err := os.MkdirAll(filepath.Dir(root+f), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(root+f, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			address := test.address
			if address != "" {
				address = root + address
			}
			got, err := Find(address, root)
			if test.want != "" && (err != nil || got != root+test.want) {
				t.Errorf("Find gives %q, %v", got, err)
			}
			if test.want == "" && (!errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "--containerd-address")) {
				t.Errorf("Find gives %q, %v", got, err)
			}
			if err := possible(address, root); (err == nil) != test.possible {
				t.Errorf("possible gives %v", err)
			}
		})
	}
}
