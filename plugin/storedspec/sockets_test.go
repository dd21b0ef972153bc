// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package storedspec

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

func TestFindSockets(t *testing.T) {
	const (
		usual = "/run/containerd/containerd.sock"
		k3s   = "/run/k3s/containerd/containerd.sock"
		snap  = "/var/snap/microk8s/common/run/containerd.sock"
		k0s   = "/run/k0s/containerd.sock"
	)
	tests := []struct {
		name    string
		sockets []string
		files   []string
		link    string // to the first socket
		address string // below the root
		want    []string
	}{
		{name: "nothing"},
		{name: "usual", sockets: []string{usual}, want: []string{usual}},
		{name: "k3s or RKE2", sockets: []string{k3s}, want: []string{k3s}},
		{name: "MicroK8s", sockets: []string{snap}, want: []string{snap}},
		{name: "k0s", sockets: []string{k0s}, want: []string{k0s}},
		{name: "several", sockets: []string{k0s, k3s, usual}, want: []string{usual, k3s, k0s}},
		{name: "a link to another", sockets: []string{k3s}, link: usual, want: []string{usual}},
		{name: "a file is not a socket", files: []string{usual}, sockets: []string{k3s}, want: []string{k3s}},
		{name: "not there yet", files: []string{"/run/k3s/containerd/config"}},
		{name: "the address wins", sockets: []string{usual, "/opt/c.sock"}, address: "/opt/c.sock",
			want: []string{"/opt/c.sock"}},
		{name: "the address alone counts", sockets: []string{usual}, address: "/opt/c.sock"},
		{name: "the address, not there yet", files: []string{"/opt/x"}, address: "/opt/c.sock"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			root := scratch.Folder(t)
			for _, s := range test.sockets {
				scratch.Socket(t, root+s)
			}
			if test.link != "" {
				if err := errors.Join(os.MkdirAll(filepath.Dir(root+test.link), 0o755), os.Symlink(root+test.sockets[0],
					root+test.link)); err != nil {
					t.Fatal(err)
				}
			}
			for _, f := range test.files {
				scratch.File(t, root+f, "", 0o600)
			}
			address := test.address
			if address != "" {
				address = root + address
			}
			got, err := findSockets(address, root)
			for i := range got {
				got[i] = strings.TrimPrefix(got[i], root)
			}
			if diff := cmp.Diff(test.want, got); diff != "" || (err == nil) != (test.want != nil) {
				t.Errorf("findSockets gives %v (-want +got):\n%s", err, diff)
			}
			if err != nil && (!errors.Is(err, ErrNoSocket) || !strings.Contains(err.Error(), "--containerd-address")) {
				t.Errorf("findSockets gives %v", err)
			}
		})
	}
}
