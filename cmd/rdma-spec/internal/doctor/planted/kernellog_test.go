// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/hardware"
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
		"4,9,1000000,c,caller=T1;mlx5: a;b": {At: 1, Text: "mlx5: a;b"},
		"no record":                         {}, "6,1;mlx5: x": {}, "6,1,x,-;mlx5: y": {},
		"14,9,1000000,-;mlx5: a program wrote this": {},
	} {
		line, ok := node.ParseRecord(record)
		if diff := cmp.Diff(want, line); diff != "" && ok || ok != (want.At != 0) {
			t.Errorf("%q: %v (-want +got):\n%s", record, ok, diff)
		}
	}
}

// Of the log, lines about RDMA are kept, and of audit records the fields of denials. "" is a line of which nothing is.
func TestKept(t *testing.T) {
	const as = "="
	for line, want := range map[string]string{
		"nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client": as,
		"mlx5_core 0000:5e:00.0: Port module event: module 0, Cable unplugged":             as,
		"bnxt_en 0000:18:00.0 eth1: NIC Link is Up, 100000 Mbps":                           as,
		"IPv6: ADDRCONF(NETDEV_CHANGE): ib0: link becomes ready":                           as,
		"pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error message received":           as,
		"efa 0000:10:1b.0: reset": as, "hfi1 0000:5e:00.0: hfi1_0: link down": as,
		"usb 1-1: password=hunter2": "", "EXT4-fs (sda1): mounted": "", "ibm_acpi: loaded": "",
		"Kernel command line: BOOT_IMAGE=/vmlinuz mlx5_core.x=1 rd.iscsi.password=hunter2":                  "",
		"Command line: ib_core.netns_mode=0 token=hunter2":                                                  "",
		`Unknown kernel command line parameters "rdma token=hunter2", will be passed to user space.`:        "",
		`audit: type=1309 audit(1.2:3): argc=3 a0="sshpass" a1="-phunter2" a2="rdma"`:                       "",
		`audit: type=1300 audit(1.2:3): arch=c000003e comm="rdma" exe="/usr/bin/rdma" key="hunter2"`:        "",
		`audit: type=1107 audit(1.2:3): pid=1 msg='avc:  denied  { start } cmdline="--token hunter2 rdma"'`: "",
		`audit: type=1400 audit(1.2:3): avc:  denied  { ipc_lock } for  pid=7 comm="x" capability=14  scontext=a:b:container_t:s0 ` +
			`tcontext=a:b:c:s0 tclass=capability permissive=0 proctitle="hunter2"`: `audit: type=1400 audit(1.2:3): avc:  denied  ` +
			`{ ipc_lock } for pid=7 comm="x" capability=14 scontext=a:b:container_t:s0 tcontext=a:b:c:s0 tclass=capability permissive=0`,
		`audit: type=1400 audit(1.2:3): apparmor="DENIED" operation="open" profile="p" name="/home/a/hunter2" info="hunter2"`: `audit: ` +
			`type=1400 audit(1.2:3): apparmor="DENIED" operation="open" profile="p"`,
		`audit: type=1400 audit(1.2:3): apparmor="DENIED" operation="open" name="/dev/infiniband/uverbs0"`: as,
	} {
		if want == as {
			want = line
		}
		if got, ok := node.Kept(line); ok != (want != "") || ok && got != want {
			t.Errorf("%s: %v, %q", line, ok, got)
		}
	}
}

// A denial of long ago is no longer a fault. A denial of now is one.
func TestDenials_expire(t *testing.T) {
	line := node.KernelLine{At: 100,
		Text: `audit: type=1400 apparmor="DENIED" operation="open" name="/dev/infiniband/uverbs0"`}
	for now, want := range map[float64]int{3600: 1, 3701: 0} {
		if got := hardware.Denials(nil, node.KernelLog{Now: now, Lines: []node.KernelLine{line}}); len(got) != want {
			t.Errorf("%v s after boot: %+v", now, got)
		}
	}
}
