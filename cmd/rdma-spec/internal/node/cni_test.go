// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	"github.com/rdma-spec/rdma-spec/spec/files"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// rdma-cni is found wherever a platform installs it, and in a network configuration.
func TestReadRDMACNI(t *testing.T) {
	installed := RDMACNI{Installed: true}
	for name, want := range map[string]RDMACNI{
		"opt/cni/bin/rdma": installed, "var/lib/cni/bin/rdma": installed, "var/lib/rancher/k3s/data/0f3/bin/rdma": installed,
		"var/lib/rancher/k3s/data/cni/rdma": installed,
		"etc/cni/net.d/10-net.conflist":     {Configured: "/etc/cni/net.d/10-net.conflist"},
		"var/lib/rancher/k3s/agent/etc/cni/net.d/10-net.conflist": {
			Configured: "/var/lib/rancher/k3s/agent/etc/cni/net.d/10-net.conflist"},
		"etc/cni/10-net.conflist": {}, "opt/cni/bin/rdmax": {},
	} {
		tree, err := files.Open(hcatest.Files{name: `{"plugins": [{"type": "rdma"}]}`,
			"etc/cni/net.d/kubeconfig": "token: x"}.Root(t))
		if err != nil {
			t.Fatal(err)
		}
		if got := readRDMACNI(tree); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
		_ = tree.Close() // it was only read
	}
}
