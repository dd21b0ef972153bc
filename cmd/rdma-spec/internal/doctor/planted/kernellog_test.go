// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	hardware "github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/hardware"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
)

// TestParseSyslog: a container reads the same from syslog(2).
func TestParseSyslog(t *testing.T) {
	got := node.ParseSyslog("cut off\n<6>[    1.500000] infiniband mlx5_0: up\n<4>[   12.345678] usb 1-1: no RDM\n" +
		"<3>[  100.000001] mlx5_core 0000:3b:00.0: Port module event[error]\n<6>no time: mlx5\n")
	want := []node.KernelLine{{At: 1.5, Text: "infiniband mlx5_0: up"},
		{At: 100.000001, Text: "mlx5_core 0000:3b:00.0: Port module event[error]"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestParseRecord(t *testing.T) {
	for record, want := range map[string]node.KernelLine{
		"6,1234,5678901,-;mlx5_core 0000:5e:00.0: firmware version: 16.35.2000\n SUBSYSTEM=pci\n DEVICE=+pci:0000:5e:00.0\n": {At: 5.678901, Text: "mlx5_core 0000:5e:00.0: firmware version: 16.35.2000"},
		"4,9,1000000,c,caller=T1;a;b": {At: 1, Text: "a;b"},
		"no record":                   {}, "6,1;x": {}, "6,1,x,-;y": {At: 0, Text: "y"},
	} {
		line, ok := node.ParseRecord(record)
		if diff := cmp.Diff(want, line); diff != "" && ok || ok != (want.At != 0) {
			t.Errorf("%q: %v (-want +got):\n%s", record, ok, diff)
		}
	}
}

func TestAboutRDMA(t *testing.T) {
	for line, want := range map[string]bool{
		"nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client": true,
		"mlx5_core 0000:5e:00.0: Port module event: module 0, Cable unplugged":             true,
		"efa 0000:10:1b.0: reset": true, "hfi1 0000:5e:00.0: hfi1_0: link down": true,
		"usb 1-1: password=hunter2": false, "EXT4-fs (sda1): mounted": false, "ibm_acpi: loaded": false,
	} {
		if got := node.AboutRDMA.MatchString(line); got != want {
			t.Errorf("%s: %v", line, got)
		}
	}
}

// A denial of long ago is no longer a fault. A denial of now is one.
func TestDenialsEnd(t *testing.T) {
	line := node.KernelLine{At: 100,
		Text: `audit: type=1400 apparmor="DENIED" operation="open" name="/dev/infiniband/uverbs0"`}
	for now, want := range map[float64]int{3600: 1, 3701: 0} {
		if got := hardware.Denials(nil, node.KernelLog{Now: now, Lines: []node.KernelLine{line}}); len(got) != want {
			t.Errorf("%v s after boot: %+v", now, got)
		}
	}
}
