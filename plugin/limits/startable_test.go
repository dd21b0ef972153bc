// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// The highest memlock with which a runtime can start a container is unlimited if it has CAP_SYS_RESOURCE in the node's
// user namespace, and otherwise its hard limit.
func TestStartable(t *testing.T) {
	const all, without = "000001ffffffffff", "000001fffeffffff"
	const node, nested = "         0          0 4294967295\n", "         0     100000      65536\n"
	for name, test := range map[string]struct {
		capabilities, uids, hard string
		want                     spec.Limit
	}{
		"root":                    {all, node, "8388608", spec.Unlimited},
		"a bounding set":          {without, node, "8388608", 8 << 20},
		"a bounding set, raised":  {without, node, "unlimited", spec.Unlimited},
		"a user namespace":        {all, nested, "8388608", 8 << 20},
		"no namespaces to ask of": {without, "", "65536", 64 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			tree := map[string]string{"7/status": "Name:\tcontainerd\nCapEff:\t" + test.capabilities + "\n",
				"7/limits": "Max locked memory         65536                " + test.hard + "            bytes     \n"}
			if test.uids != "" {
				tree["7/uid_map"] = test.uids
			}
			if got, err := files(t, tree).Startable(7); got != test.want || err != nil {
				t.Errorf("it can start %s, %v, want %s", got, err, test.want)
			}
		})
	}
	if got, err := New(scratch.Dir(t)).Startable(7); err == nil {
		t.Errorf("of a process that is not there: %s", got)
	}
}

// TestStartable_ByName: a runtime in another PID namespace is found by its name. A process in a container is ignored,
// and if several runtimes have different limits, there is no result.
func TestStartable_ByName(t *testing.T) {
	process := func(pid int, comm, cgroup, hard string) map[string]string {
		return map[string]string{
			fmt.Sprintf("%d/comm", pid): comm + "\n", fmt.Sprintf("%d/cgroup", pid): "0::" + cgroup + "\n",
			fmt.Sprintf("%d/status", pid):  "CapEff:\t000001fffeffffff\n",
			fmt.Sprintf("%d/uid_map", pid): "0 0 4294967295\n",
			fmt.Sprintf("%d/limits", pid):  "Max locked memory 65536 " + hard + " bytes\n",
		}
	}
	runtime := process(7, "containerd", "/system.slice/containerd.service", "8388608")
	pretender := process(8, "crio", "/kubepods.slice/cri-containerd-"+idA+".scope", "65536")
	shim := process(9, "containerd-shim", "/system.slice/containerd.service", "65536")
	same := process(10, "containerd", "/system.slice/docker.service", "8388608")
	other := process(11, "crio", "/system.slice/crio.service", "65536")
	for name, test := range map[string]struct {
		processes []map[string]string
		want      spec.Limit
	}{
		"one":                       {[]map[string]string{runtime, pretender, shim}, 8 << 20},
		"two that say the same":     {[]map[string]string{runtime, same}, 8 << 20},
		"two that differ":           {[]map[string]string{runtime, other}, 0},
		"none but of a container's": {[]map[string]string{pretender, shim}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			tree := map[string]string{}
			for _, p := range test.processes {
				maps.Copy(tree, p)
			}
			got, err := files(t, tree).Startable(0)
			if got != test.want || errors.Is(err, ErrNoRuntime) != (test.want == 0) {
				t.Errorf("%s, %v, want %s", got, err, test.want)
			}
		})
	}
}
