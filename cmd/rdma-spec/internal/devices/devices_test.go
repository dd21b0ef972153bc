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

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
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
	littleSaid := hcatest.V100Node()
	littleSaid.NoRDMACM = true
	for name, root := range map[string]string{
		"bond": hcatest.A100(t), "soft": hcatest.SoftRoCE(t), "stacked": hcatest.RoCE(t), "efa": hcatest.EFA(t),
		"two-ports": twoPorts.Files().Root(t), "none": hcatest.NoRDMA(t),
		"little-said": littleSaid.Files().Without(links+"/1/state",
			"sys/devices/pci0000:86/0000:86:00.0/infiniband/mlx5_1/ports").Root(t),
		"no-devices": hcatest.V100Node().Files().Without("device-table.txt").With(hcatest.Files{
			"dev/infiniband/uverbs1": hcatest.Link("uverbs0"), "dev/infiniband/rdma_cm/": ""}).Root(t),
	} {
		stdout, stderr, err := listDevices(t, "--root", root)
		if err != nil {
			t.Fatal(err)
		}
		golden.Compare(t, "testdata/"+name+".txt", stdout+"--- stderr\n"+stderr)
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
	if _, _, err = listDevices(t, "mlx5_0"); err == nil {
		t.Error("an argument was taken")
	}
}
