// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
)

// rail is a container that holds rxe1, and has a macvlan of its netdev in a network namespace of its own. The macvlan is
// called net1, as in each pod.
type rail struct {
	pod *containerd.Sandbox
	id  string
}

// run runs the container, in place of an earlier one, with an address or none.
func (r *rail) run(t *testing.T, address string, env map[string]string) {
	t.Helper()
	if r.id != "" {
		if err := ctrd.RemoveContainer(within(t, patience), r.id); err != nil {
			t.Fatal(err)
		}
	}
	r.id = runContainer(t, r.pod, containerd.Container{Name: fmt.Sprintf("with-%d", len(env)), Env: env,
		Devices: containerd.Verbs(1), AddCaps: []string{"SYS_ADMIN"},
		Args: []string{"/usr/bin/unshare", "--net", "sleep", "1000000"}})
	await.Success(t, patience, "in a network namespace of its own", func() error {
		its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid(t, r.id)))
		nodes, errNode := os.Readlink("/proc/self/ns/net")
		if its == nodes {
			return errors.Join(err, errNode, errors.New("it is in the node's"))
		}
		return errors.Join(err, errNode)
	})
	onNode(t, fmt.Sprintf("ip link add rail0 link dummy1 type macvlan && ip link set rail0 netns %d name net1 && "+
		"nsenter -t %[1]d -n ip link set net1 up", pid(t, r.id)))
	if address != "" {
		r.address(t, address)
	}
}

// address gives the interface an address, and waits until it is a GID of the HCA.
func (r *rail) address(t *testing.T, address string) {
	t.Helper()
	onNode(t, fmt.Sprintf("nsenter -t %d -n ip address add %s/24 dev net1", pid(t, r.id), address))
	gidIndex(t, address)
}

// gidIndex waits until an address is a GID of rxe1, and returns its index.
func gidIndex(t *testing.T, address string) (index string) {
	t.Helper()
	want := netip.MustParseAddr(address)
	await.Success(t, patience, "in the GID table", func() error {
		files, err := filepath.Glob("/sys/class/infiniband/rxe1/ports/1/gids/*")
		for _, file := range files {
			text, _ := os.ReadFile(file) // it is gone
			var gid netip.Addr
			if gid.UnmarshalText(text[:max(0, len(text)-1)]) == nil && gid.Unmap() == want {
				index = filepath.Base(file)
				return nil
			}
		}
		return errors.Join(err, errors.New(address+" is not there"))
	})
	return index
}
