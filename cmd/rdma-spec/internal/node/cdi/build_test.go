// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

var defaults = Options{Devices: []string{all}, Memlock: spec.Unlimited, Hook: DefaultHook}

func scan(t *testing.T, root string) *hca.Inventory {
	t.Helper()
	node, err := hca.Scan(root)
	if err != nil {
		t.Fatal(err)
	}
	return node
}

// CDI's own library accepts the file of every node, and the same node gives the same bytes.
func TestBuild_everyNode(t *testing.T) {
	for name, root := range hcatest.All {
		t.Run(name, func(t *testing.T) {
			for _, o := range []Options{defaults, {Devices: []string{all}, Management: true}} {
				node := scan(t, root(t))
				built, notes, missing := Build(node, o)
				if len(missing) > 0 {
					t.Errorf("missing: %q", missing)
				}
				var text []byte
				if built != nil {
					var err error
					if text, err = Text(built, o); err != nil {
						t.Fatal(err)
					}
				}
				again, _, _ := Build(scan(t, root(t)), o)
				if diff := cmp.Diff(built, again); diff != "" {
					t.Errorf("the second time (-first +second):\n%s", diff)
				}
				if !o.Management {
					golden.Compare(t, filepath.Join("testdata", name+".yaml"), string(text)+"# Notes: "+strings.Join(notes, "; ")+"\n")
				}
				if built == nil {
					continue
				}
				dir := scratch.Dir(t)
				scratch.File(t, filepath.Join(dir, "rdma.yaml"), string(text), 0o600)
				cache, err := cdi.NewCache(cdi.WithSpecDirs(dir), cdi.WithAutoRefresh(false))
				if err != nil || len(cache.GetErrors()) > 0 || len(cache.ListDevices()) != len(built.Devices) {
					t.Errorf("the library finds %q: %v, %v", cache.ListDevices(), err, cache.GetErrors())
				}
			}
		})
	}
}

func TestBuild_noManagementUnlessAsked(t *testing.T) {
	for name, root := range hcatest.All {
		built, _, _ := Build(scan(t, root(t)), defaults)
		if built == nil {
			continue
		}
		text, err := Text(built, defaults)
		if err != nil || strings.Contains(string(text), "umad") || strings.Contains(string(text), "issm") {
			t.Errorf("%s: %v\n%s", name, err, text)
		}
	}
}

// Which HCAs each name stands for, by their verbs devices.
func TestNames(t *testing.T) {
	shared := hcatest.RoCENode() // one bond over both
	for i := range shared.HCAs {
		shared.HCAs[i].Ports[0].Stacked = []hcatest.Netdev{{Name: "bond0", Kind: "bond"}}
	}
	clash := hcatest.V100Node() // the second's netdev is called as the first
	clash.HCAs[1].Ports[0].Netdevs = []string{"mlx5_0"}
	odd := hcatest.V100Node()
	odd.HCAs[1].Name, odd.HCAs[0].Ports[0].Netdevs = "mlx5+1", []string{"all"}
	idle := hcatest.V100Node()
	for i := range idle.HCAs {
		idle.HCAs[i].Ports[0] = idle.HCAs[i].Ports[0].Down()
	}
	for name, test := range map[string]struct {
		root    string
		devices string
		want    map[string]string
		notes   string
		missing string
	}{
		"two": {hcatest.V100(t), all, map[string]string{
			"all": "uverbs0 uverbs1", "mlx5_0": "uverbs0", "mlx5_1": "uverbs1", "0000:5e:00.0": "uverbs0",
			"0000:86:00.0": "uverbs1", "ib0": "uverbs0", "ib1": "uverbs1",
		}, "", ""},
		"one of two": {hcatest.V100(t), "mlx5_1", map[string]string{"all": "uverbs1", "mlx5_1": "uverbs1",
			"0000:86:00.0": "uverbs1", "ib1": "uverbs1"}, "", ""},
		"one that is gone": {hcatest.V100(t), "mlx5_1,mlx5_7", map[string]string{"all": "uverbs1", "mlx5_1": "uverbs1",
			"0000:86:00.0": "uverbs1", "ib1": "uverbs1"}, "", "mlx5_7"},
		"all are gone": {hcatest.V100(t), "mlx5_7", nil, "", "mlx5_7"},
		"a port is down": {hcatest.A100(t), "mlx5_0,mlx5_1", map[string]string{
			"all": "uverbs1", "mlx5_0": "uverbs0", "mlx5_1": "uverbs1", "0000:0c:00.0": "uverbs0", "0000:4b:00.0": "uverbs1",
			"ibp12s0": "uverbs0", "ibp75s0": "uverbs1",
		}, "", ""},
		"all ports are down": {idle.Files().Root(t), all, map[string]string{
			"mlx5_0": "uverbs0", "mlx5_1": "uverbs1", "0000:5e:00.0": "uverbs0", "0000:86:00.0": "uverbs1",
			"ib0": "uverbs0", "ib1": "uverbs1",
		}, "the CDI file has no device named all, because none of the file's HCAs has an ACTIVE port", ""},
		"VFs are apart": {hcatest.SRIOV(t), all, map[string]string{
			"all": "uverbs0", "mlx5_0": "uverbs0", "mlx5_1": "uverbs1", "mlx5_2": "uverbs2",
			"mlx5_3": "uverbs3", "ib0": "uverbs0",
			"0000:3b:00.0": "uverbs0", "0000:3b:00.1": "uverbs1", "0000:3b:00.2": "uverbs2", "0000:3b:00.3": "uverbs3",
		}, "", ""},
		"VFs that are named": {hcatest.SRIOV(t), "mlx5_1,mlx5_3", map[string]string{
			"all": "uverbs1 uverbs3", "mlx5_1": "uverbs1", "mlx5_3": "uverbs3", "0000:3b:00.1": "uverbs1",
			"0000:3b:00.3": "uverbs3",
		}, "", ""},
		"scalable functions": {hcatest.Scalable(t), all, map[string]string{
			"all": "uverbs0", "mlx5_0": "uverbs0", "mlx5_2": "uverbs1", "mlx5_3": "uverbs2", "0000:03:00.0": "uverbs0",
			"enp3s0f0np0": "uverbs0", "enp3s0f0s2": "uverbs1", "enp3s0f0s3": "uverbs2",
		}, "", ""},
		"Omni-Path": {hcatest.OmniPath(t), "hfi1_0", map[string]string{
			"all": "uverbs0 hfi1_0", "hfi1_0": "uverbs0 hfi1_0", "0000:5e:00.0": "uverbs0 hfi1_0", "ib0": "uverbs0 hfi1_0",
		}, "", ""},
		"a bond over two": {shared.Files().Root(t), all, map[string]string{
			"all": "uverbs0 uverbs1", "mlx5_0": "uverbs0", "mlx5_1": "uverbs1", "0000:18:00.0": "uverbs0",
			"0000:3b:00.0": "uverbs1",
			"eth0":         "uverbs0", "eth1": "uverbs1", "bond0": "uverbs0 uverbs1",
		}, "", ""},
		"a netdev called as an HCA": {clash.Files().Root(t), all, map[string]string{
			"all": "uverbs0 uverbs1", "mlx5_0": "uverbs0", "mlx5_1": "uverbs1", "0000:5e:00.0": "uverbs0",
			"0000:86:00.0": "uverbs1", "ib0": "uverbs0",
		}, "", ""},
		"names that CDI refuses": {odd.Files().Root(t), all, map[string]string{
			"all": "uverbs1 uverbs0", "mlx5_0": "uverbs0", "0000:5e:00.0": "uverbs0",
			"0000:86:00.0": "uverbs1", "ib1": "uverbs1",
		}, `the CDI file has no device named "mlx5+1": `, ""},
		"no HCA": {hcatest.NoRDMA(t), all, nil, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			built, notes, missing := Build(scan(t, test.root), Options{Devices: strings.Split(test.devices, ","),
				Memlock: spec.Unlimited, Hook: DefaultHook})
			if diff := cmp.Diff(test.want, verbs(built)); diff != "" {
				t.Errorf("devices (-want +got):\n%s", diff)
			}
			if !strings.HasPrefix(strings.Join(notes, "\n"), test.notes) || test.notes == "" && len(notes) > 0 ||
				strings.Join(missing, ",") != test.missing {
				t.Errorf("notes %q, missing %q", notes, missing)
			}
		})
	}
}

// verbs returns the device nodes of each device.
func verbs(built *specs.Spec) map[string]string {
	if built == nil {
		return nil
	}
	all := map[string]string{}
	for _, d := range built.Devices {
		var nodes []string
		for _, n := range d.ContainerEdits.DeviceNodes {
			nodes = append(nodes, filepath.Base(n.Path))
		}
		all[d.Name] = strings.Join(nodes, " ")
	}
	return all
}

func TestHook(t *testing.T) {
	node := scan(t, hcatest.V100(t))
	for _, test := range []struct {
		options Options
		want    string
	}{
		{defaults, "/usr/local/bin/rdma-hook: rdma-hook memlock --memlock unlimited"},
		{Options{Devices: []string{all}, Memlock: 16 << 30, Hook: "/opt/rdma-hook", Required: true, Kubernetes: true},
			"/opt/rdma-hook: rdma-hook memlock --memlock 16Gi --required --kubernetes"},
		{Options{Devices: []string{all}}, ""},
	} {
		built, _, _ := Build(node, test.options)
		got := ""
		for _, h := range built.ContainerEdits.Hooks {
			got += h.Path + ": " + strings.Join(h.Args, " ")
			if h.HookName != "createRuntime" {
				t.Errorf("it is a %s hook", h.HookName)
			}
		}
		if got != test.want {
			t.Errorf("hook %q, want %q", got, test.want)
		}
		text, err := Text(built, test.options)
		if err != nil {
			t.Fatal(err)
		}
		if o, found := optionsOf(string(text)); !found || !cmp.Equal(o, test.options) {
			t.Errorf("the file says it was made with %+v, want %+v", o, test.options)
		}
	}
}

// Other numbers at boot give the same file, and other device nodes another.
func TestBuild_sameAfterReboot(t *testing.T) {
	before := hcatest.V100Node()
	swapped := hcatest.V100Node()
	slices.Reverse(swapped.HCAs)
	first, _, _ := Build(scan(t, before.Files().Root(t)), defaults)
	second, _, _ := Build(scan(t, swapped.Files().Root(t)), defaults)
	if got := verbs(first)["mlx5_0"]; got != "uverbs0" {
		t.Fatalf("mlx5_0 has %s before", got)
	}
	if got := verbs(second)["mlx5_0"]; got != "uverbs1" {
		t.Errorf("mlx5_0 has %s after", got)
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(verbs(first))), slices.Sorted(maps.Keys(verbs(second)))); diff != "" {
		t.Errorf("names (-before +after):\n%s", diff)
	}
}
