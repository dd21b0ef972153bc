// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/cli"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// listDevices runs the subcommand and gives what it wrote.
func listDevices(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, notes bytes.Buffer
	cmd := Command()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&notes)
	err = cmd.Execute()
	return out.String(), notes.String(), err
}

func TestDevicesTable(t *testing.T) {
	twoPorts := hcatest.Node{HCAs: []hcatest.HCA{{Name: "mlx4_0", PCI: "0000:5e:00.0", Ports: []hcatest.Port{
		{Netdevs: []string{"ib0"}}, {State: "2: INIT", PhysState: "5: LinkUp", Netdevs: []string{"ib1", "ib1.8001"}}}}}}
	const links = "sys/devices/pci0000:5e/0000:5e:00.0/infiniband/mlx5_0/ports"
	for _, tc := range []struct{ name, root, stdout, stderr string }{
		{name: "A100", root: hcatest.A100(t), stdout: `
HCA          PCI           NUMA  LINK LAYER  PORT STATE       RATE                 NETDEV      DEVICES
mlx5_0       0000:0c:00.0  0     InfiniBand  DOWN (Disabled)  10 Gb/sec (4X SDR)   ibp12s0     uverbs0,umad0,issm0
mlx5_1       0000:4b:00.0  1     InfiniBand  ACTIVE           200 Gb/sec (4X HDR)  ibp75s0     uverbs1,umad1,issm1
mlx5_bond_0  0000:e1:00.0  1     Ethernet    ACTIVE           100 Gb/sec (4X EDR)  bond0,eth0  uverbs2,umad2,issm2
(node)       -             -     -           -                -                    -           rdma_cm
`},
		{name: "soft HCAs", root: hcatest.SoftRoCE(t), stdout: `
HCA     PCI  NUMA  LINK LAYER  PORT STATE       RATE                 NETDEV  DEVICES
rxe0    -    -     Ethernet    ACTIVE           2.5 Gb/sec (1X SDR)  eth0    uverbs0,umad0,issm0
rxe1    -    -     Ethernet    ACTIVE           2.5 Gb/sec (1X SDR)  d1      uverbs1,umad1,issm1
rxe2    -    -     Ethernet    DOWN (Disabled)  2.5 Gb/sec (1X SDR)  d2      uverbs2,umad2,issm2
(node)  -    -     -           -                -                    -       rdma_cm
`},
		{name: "netdevs stacked on others", root: hcatest.RoCE(t), stdout: `
HCA     PCI           NUMA  LINK LAYER  PORT STATE  RATE                 NETDEV            DEVICES
mlx5_0  0000:18:00.0  0     Ethernet    ACTIVE      100 Gb/sec (4X EDR)  eth0,eth0.100,+1  uverbs0,umad0,issm0
mlx5_1  0000:3b:00.0  0     Ethernet    ACTIVE      100 Gb/sec (4X EDR)  eth1              uverbs1,umad1,issm1
(node)  -             -     -           -           -                    -                 rdma_cm
`},
		{name: "EFA", root: hcatest.EFA(t), stdout: `
HCA          PCI           NUMA  LINK LAYER  PORT STATE  RATE                 NETDEV  DEVICES
efa_0        0000:10:1b.0  0     Unknown     ACTIVE      100 Gb/sec (4X EDR)  -       uverbs0
rdmap144s27  0000:90:1b.0  1     Unknown     ACTIVE      100 Gb/sec (4X EDR)  -       uverbs1
`},
		{name: "two ports", root: twoPorts.Files().Root(t), stdout: `
HCA       PCI           NUMA  LINK LAYER  PORT STATE     RATE                 NETDEV        DEVICES
mlx4_0/1  0000:5e:00.0  0     InfiniBand  ACTIVE         100 Gb/sec (4X EDR)  ib0           uverbs0,umad0,issm0
mlx4_0/2  0000:5e:00.0  0     InfiniBand  INIT (LinkUp)  100 Gb/sec (4X EDR)  ib1,ib1.8001  uverbs0,umad1,issm1
(node)    -             -     -           -              -                    -             rdma_cm
`},
		{name: "no RDMA", root: hcatest.NoRDMA(t), stdout: `
HCA  PCI  NUMA  LINK LAYER  PORT STATE  RATE  NETDEV  DEVICES
`, stderr: `
rdma-spec: this node has no HCA: see that its driver is loaded (mlx5_ib, irdma, bnxt_re, efa, rdma_rxe …)
`},
		{name: "rdma_cm not loaded, a port that says little, no ports", root: func() string {
			n := hcatest.V100Node()
			n.NoRDMACM = true
			return n.Files().Without(links+"/1/state", "sys/devices/pci0000:86/0000:86:00.0/infiniband/mlx5_1/ports").Root(t)
		}(), stdout: `
HCA     PCI           NUMA  LINK LAYER  PORT STATE        RATE                 NETDEV  DEVICES
mlx5_0  0000:5e:00.0  0     InfiniBand  unknown (LinkUp)  100 Gb/sec (4X EDR)  ib0     uverbs0,umad0,issm0
mlx5_1  0000:86:00.0  1     -           -                 -                    -       uverbs1,umad1,issm1
`, stderr: `
rdma-spec: HCA mlx5_0: ports/1/state: no such file or directory
rdma-spec: HCA mlx5_1: ports: no such file or directory
rdma-spec: there is no rdma_cm device, programs that connect through RDMA_CM will fail: modprobe rdma_ucm
`},
		{name: "a link, the others missing", root: hcatest.V100Node().Files().Without("device-table.txt").With(hcatest.Files{
			"dev/infiniband/uverbs1": hcatest.Link("uverbs0"), "dev/infiniband/rdma_cm/": ""}).Root(t), stdout: `
HCA     PCI           NUMA  LINK LAYER  PORT STATE  RATE                 NETDEV  DEVICES
mlx5_0  0000:5e:00.0  0     InfiniBand  ACTIVE      100 Gb/sec (4X EDR)  ib0     uverbs0,umad0,issm0
mlx5_1  0000:86:00.0  1     InfiniBand  ACTIVE      100 Gb/sec (4X EDR)  ib1     uverbs1!,umad1,issm1
(node)  -             -     -           -           -                    -       rdma_cm!
`, stderr: `
rdma-spec: HCA mlx5_1: /dev/infiniband/uverbs1 is a symbolic link, not a character device
rdma-spec: /dev/infiniband/rdma_cm is a folder, not a character device
rdma-spec: missing in /dev/infiniband: uverbs0, umad0, issm0, umad1 and 1 more: see that the node's /dev is visible here; sysfs has their numbers
`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			stdout, stderr, err := listDevices(t, "--root", tc.root)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.TrimPrefix(tc.stdout, "\n"), stdout); diff != "" {
				t.Errorf("stdout (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(strings.TrimPrefix(tc.stderr, "\n"), stderr); diff != "" {
				t.Errorf("stderr (-want +got):\n%s", diff)
			}
		})
	}
}

// withoutPlaces leaves out what JSON does.
var withoutPlaces = cmpopts.IgnoreFields(hca.HCA{}, "Place")

func TestDevicesStructured(t *testing.T) {
	for format, parse := range map[string]func([]byte, any) error{
		"json": json.Unmarshal,
		"yaml": func(text []byte, v any) error { return yaml.UnmarshalStrict(text, v) },
	} {
		for _, root := range []string{hcatest.EightHCA(t), hcatest.Broken(t)} {
			stdout, stderr, err := listDevices(t, "--root", root, "-o", format)
			if err != nil || stderr != "" {
				t.Fatalf("error %v, stderr %q", err, stderr)
			}
			want, err := hca.ScanDetails(root)
			if err != nil {
				t.Fatal(err)
			}
			got := Inventory{Inventory: &hca.Inventory{}}
			if err := parse([]byte(stdout), &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(Inventory{Meta: cli.Result("Devices"), Inventory: want}, got, withoutPlaces); diff != "" {
				t.Errorf("%s does not give the node that was scanned (-want +got):\n%s", format, diff)
			}
		}
	}
	stdout, stderr, err := listDevices(t, "--root", hcatest.NoRDMA(t), "-o", "json")
	if want := "{\n  \"apiVersion\": \"rdma-spec/v1alpha1\",\n  \"kind\": \"Devices\",\n  \"hcas\": [],\n  \"rdmaCM\": null,\n  " +
		"\"netnsExclusive\": false\n}\n"; err != nil || stdout != want || !strings.Contains(stderr, "this node has no HCA") {
		t.Errorf("no RDMA: error %v, stdout %s, stderr %s", err, stdout, stderr)
	}
}

func TestDevicesErrors(t *testing.T) {
	_, _, err := listDevices(t, "--root", "/nonexistent")
	if err == nil || !strings.Contains(err.Error(), `root "/nonexistent": no such file or directory`) {
		t.Errorf("root that is not there: error %v", err)
	}
	_, _, err = listDevices(t, "-o", "xml")
	if err == nil || !strings.Contains(err.Error(), "must be one of table, json, yaml") {
		t.Errorf("unknown format: error %v", err)
	}
	if _, _, err = listDevices(t, "mlx5_0"); err == nil {
		t.Error("an argument was taken")
	}
}
