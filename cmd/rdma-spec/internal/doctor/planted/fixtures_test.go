// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/hardware"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
)

// TestHealthyNode checks that those checks are ok on a healthy node that healthyNode has nothing for.
func TestHealthyNode(t *testing.T) {
	for _, f := range findings(t, hcatest.EFANode().Files().With(hcatest.Files{"proc/meminfo": "MemTotal: 1000 kB\nHugePages_Total: 512\nCmaFree: 0 kB\nMemAvailable: 900 kB\n"})) {
		if f.Status != doctor.OK && slices.Contains(elsewhereOK, f.Check) {
			t.Errorf("%+v", f)
		}
	}
}

// Nodes that fooled other tools, beside those of TestKnownNodes: nothing is wrong with them.
func TestRun_noFalseAlarm(t *testing.T) {
	nodes := map[string]hcatest.Files{
		"virtual functions": hcatest.Many(9).Files(), "no RDMA": hcatest.Node{NoRDMACM: true}.Files(),
		"RoCE bond": hcatest.A100Node().Files(), "dual-port mlx4": hcatest.DualPortNode().Files(),
		"no GPU": hcatest.V100Node().Files(), "DMA-BUF without peermem": healthyNode(), "nothing": {"etc/": ""},
		"soft-RoCE with a port that is off": hcatest.SoftRoCENode().Files(),
		"iWARP":                             hcatest.IWARPFiles(), "renamed": hcatest.RenamedNode().Files(),
		"RoCE":                                 hcatest.RoCENode().Files(),
		"EightHCA":                             hcatest.EightHCANode().Files(),
		"idle virtual functions that are DOWN": idleFunctions(),
		"a ConnectX-8 whose sub-device has the first name": connectX8Named(), "a virtual machine": virtualMachine(),
		"a Wi-Fi card without a driver": healthyNode().With(card("0000:d0:00.0", "0x8086", "0x24fd", "0x028000", "")),
	}
	for name, files := range nodes {
		if bad := wrong(findings(t, files)); len(bad) > 0 {
			t.Errorf("%s: %+v", name, bad)
		}
	}
}

// A node where much is broken ends with findings, not with a panic.
func TestRun_brokenNode(t *testing.T) {
	if all := findings(t, hcatest.BrokenFiles()); len(all) < len(checks()) {
		t.Errorf("%d findings of %d checks", len(all), len(checks()))
	}
}

// undeclared are the errors of checks that read what they do not declare.
var undeclared sync.Map

// sayOnce fails the first test on whose node a check reads what it does not declare. It does so on all others as well.
func sayOnce(t *testing.T) func(error) {
	return func(err error) {
		if _, said := undeclared.LoadOrStore(err.Error(), true); !said {
			t.Error(err)
		}
	}
}

// findings runs all checks on a copy. A check that reads what it does not declare fails the test, and so does a text
// that is empty, of the year 1, or of one as of many.
func findings(t *testing.T, files hcatest.Files) []doctor.Finding {
	t.Helper()
	node := open(t, files)
	defer func() { _ = node.Close() }()
	node.Timeout = await.Timeout // a busy machine reads a large node for seconds
	node.Undeclared = sayOnce(t)
	all := doctor.Run(t.Context(), node, checks())
	for _, f := range all {
		if f.Text == "" || strings.Contains(f.Text, "0001-01-01") || strings.Contains(f.Text, " 1 times") {
			t.Errorf("%+v", f)
		}
	}
	return all
}

const (
	gpuOne, gpuTwo = "0000:b6:00.0", "0000:c6:00.0"
	// root, up and down are a root port and the ports of a switch below it, above mlx5_0 and the first GPU.
	rootPort, switchUp, downToHCA, downToGPU = "0000:b0:00.0", "0000:b1:00.0", "0000:b2:00.0", "0000:b2:01.0"
)

// healthyNode has two GPUs and four HCAs of one board. mlx5_0 and the first GPU are below one switch.
func healthyNode() hcatest.Files {
	var n hcatest.Node
	link := hcatest.Files{
		"current_link_speed": "32.0 GT/s PCIe\n", "max_link_speed": "32.0 GT/s PCIe\n", "current_link_width": "16\n",
		"max_link_width": "16\n",
		"vendor":         "0x15b3\n", "device": "0x1021\n", "subsystem_vendor": "0x15b3\n",
		"subsystem_device": "0x0041\n", "class": "0x020700\n",
	}
	files := hcatest.Files{}
	for i, layer := range []string{"InfiniBand", "InfiniBand", "InfiniBand", "Ethernet", "Ethernet", "Ethernet"} {
		h := hcatest.HCA{Name: fmt.Sprintf("mlx5_%d", i), PCI: fmt.Sprintf("0000:%02x:00.0", 0xb4+i),
			Driver: "mlx5_core", Firmware: "28.39.2048",
			Ports: []hcatest.Port{{LinkLayer: layer, Rate: "400 Gb/sec (4X NDR)", Netdevs: []string{fmt.Sprintf("net%d", i)}}}}
		if i == 2 || i == 5 { // so that most have the same rate
			h.PCI = fmt.Sprintf("0000:%02x:00.0", 0xa0+i)
		}
		if i == 0 {
			h.Above = rootPort + "/" + switchUp + "/" + downToHCA
		}
		n.HCAs = append(n.HCAs, h)
		at := hcatest.PCIDir(h.PCI, h.Above)
		for name, value := range link {
			files[at+"/"+name] = value
		}
		files[at+"/infiniband/"+h.Name+"/board_id"] = "MT_0000000838\n"
		aux := fmt.Sprintf("mlx5_core.rdma.%d", i)
		files["sys/bus/auxiliary/devices/"+aux] = hcatest.Link("../../../" + strings.TrimPrefix(at, "sys/") + "/" + aux)
		files[at+"/"+aux+"/driver"] = hcatest.Link(strings.Repeat("../", strings.Count(at, "/")+1) +
			"bus/auxiliary/drivers/mlx5_ib.rdma")
	}
	for gid := range 16 {
		files[fmt.Sprintf("%s/ports/1/gids/%d", at(3), gid)] = "0000:0000:0000:0000:0000:0000:0000:0000\n"
	}
	files["sys/bus/auxiliary/drivers/mlx5_ib.rdma/"], files["sys/module/mlx5_ib/"],
		files["sys/module/ib_core/holders/mlx5_ib"] = "", "", ""
	files["sys/module/ib_core/parameters/netns_mode"] = "Y\n"
	bridge := func(address, above string) {
		n.PCI = append(n.PCI, hcatest.PCI{Address: address, Above: above, Driver: "pcieport", Files: hcatest.Files{
			"class": "0x060400\n", "vendor": "0x1000\n", "max_link_speed": "32.0 GT/s PCIe\n",
			"max_link_width": "16\n", "config": config(0)}})
	}
	bridge(rootPort, "")
	bridge(switchUp, rootPort)
	bridge(downToHCA, rootPort+"/"+switchUp)
	bridge(downToGPU, rootPort+"/"+switchUp)
	gpu := hcatest.Files{"class": "0x030200\n", "vendor": "0x10de\n", "numa_node": "0\n"}
	n.PCI = append(n.PCI, hcatest.PCI{Address: gpuOne, Above: rootPort + "/" + switchUp + "/" + downToGPU,
		Driver: "nvidia", Files: gpu},
		hcatest.PCI{Address: gpuTwo, Above: rootPort, Driver: "nvidia", Files: gpu})
	files["proc/driver/nvidia/version"] = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release " +
		"Build\n"
	files[node.AnswersDir+"/rdma-cni.json"] = `{"answer": {}}`
	files[node.AnswersDir+
		"/kernel-log.json"] = `{"answer": {"now": 7200, "lines": [{"at": 5, "text": "mlx5_core 0000:b4:00.0: firmware version: 28.39.2048"}]}}`
	return n.Files().With(files)
}

// config is the configuration space of a bridge whose second extended capability is ACS, with this control register.
func config(control byte) string {
	space := make([]byte, 4096)
	// AER, the next one is at 0x150
	copy(space[hardware.FirstExtended:], []byte{0x01, 0x00, 0x01, 0x15})
	copy(space[0x150:], []byte{hardware.CapabilityACS, 0, 1, 0, 0x5f, 0x00, control, 0x00}) // the last one
	return string(space)
}

// gb300 has a bridge that redirects, which a Grace CPU needs, above an HCA and a GPU.
func gb300() hcatest.Files {
	n := hcatest.GB300Node()
	for i := range n.HCAs {
		root := fmt.Sprintf("%04x:00:00.0", i)
		up, downHCA, downGPU := fmt.Sprintf("%04x:01:00.0", i), fmt.Sprintf("%04x:02:00.0", i), fmt.Sprintf("%04x:02:01.0", i)
		n.HCAs[i].Above = root + "/" + up + "/" + downHCA
		bridge := hcatest.Files{"class": "0x060400\n", "vendor": "0x10de\n", "config": config(hardware.Redirects)}
		n.PCI = append(n.PCI, hcatest.PCI{Address: root, Files: bridge}, hcatest.PCI{Address: up, Above: root, Files: bridge},
			hcatest.PCI{Address: downHCA, Above: root + "/" + up, Files: bridge}, hcatest.PCI{Address: downGPU, Above: root +
				"/" + up, Files: bridge},
			hcatest.PCI{Address: fmt.Sprintf("%04x:09:00.0", i), Above: root + "/" + up + "/" + downGPU, Driver: "nvidia",
				Files: hcatest.Files{"class": "0x030200\n", "vendor": "0x10de\n"}})
	}
	return n.Files().With(hcatest.Files{"proc/driver/nvidia/version": "NVIDIA UNIX Open Kernel Module\n"})
}

// idleFunctions has virtual functions that no pod uses.
func idleFunctions() hcatest.Files {
	n := hcatest.Many(4)
	for i := 1; i < len(n.HCAs); i++ {
		n.HCAs[i].Ports[0] = n.HCAs[i].Ports[0].Down()
	}
	return n.Files()
}

// exclusive is a node with rdma-cni, one of whose HCAs is in a pod's network namespace.
func exclusive() hcatest.Files {
	const at = "sys/devices/pci0000:18/0000:18:00.0"
	return hcatest.RoCENode().Files().Without("sys/class/infiniband/mlx5_0", at+"/infiniband").With(hcatest.Files{
		"sys/module/ib_core/parameters/netns_mode": "N\n", "opt/cni/bin/rdma": "\x7fELF",
		"sys/bus/auxiliary/devices/mlx5_core.rdma.0": hcatest.Link("../../../devices/pci0000:18/0000:18:00.0/mlx5_core.rdma.0"),
		at + "/mlx5_core.rdma.0/driver":              hcatest.Link("../../../../bus/auxiliary/drivers/mlx5_ib.rdma"),
		"sys/bus/auxiliary/drivers/mlx5_ib.rdma/":    "",
	})
}

// virtualMachine has an HCA and a GPU that are passed through: links and bridges are made up.
func virtualMachine() hcatest.Files {
	n := hcatest.V100Node()
	for i := range n.HCAs {
		n.HCAs[i].Above = "0000:00:02.0"
	}
	files := n.Files()
	at := hcatest.PCIDir("0000:5e:00.0", "0000:00:02.0")
	return files.With(hcatest.Files{
		at + "/current_link_speed": "Unknown\n", at + "/max_link_speed": "16.0 GT/s PCIe\n",
		at + "/current_link_width": "0\n", at + "/max_link_width": "16\n",
	})
}

// pci is where a device of healthyNode has its files, and at an HCA has its own.
func pci(number int) string {
	address := fmt.Sprintf("0000:%02x:00.0", 0xb4+number)
	switch number {
	case 0:
		return hcatest.PCIDir(address, rootPort+"/"+switchUp+"/"+downToHCA)
	case 2, 5:
		address = fmt.Sprintf("0000:%02x:00.0", 0xa0+number)
	}
	return hcatest.PCIDir(address, "")
}

func at(number int) string { return fmt.Sprintf("%s/infiniband/mlx5_%d", pci(number), number) }

// row is a line of a copy's table of devices.
func row(name, kind string, number hca.Number) string {
	return fmt.Sprintf("/dev/infiniband/%s %s 0666 0 0 %d %d\n", name, kind, number.Major, number.Minor)
}

// connectX8Named is connectX8 with a sub-device that comes before its HCA.
func connectX8Named() hcatest.Files {
	files := hcatest.Files{}
	for name, content := range connectX8() {
		files[strings.ReplaceAll(name, "smi1", "a_smi")] = strings.ReplaceAll(content, "smi1", "a_smi")
	}
	return files
}

// hurts are the beginnings of commands that take from a node, or from its pods, what works.
var hurts = regexp.MustCompile(`/bus/pci/devices/\S+/driver|modprobe -r \S*(mlx|ib_core)|setpci -s|drop_caches|` +
	`sysctl --system|setsebool|rdma\.max`)

// shows matches the command with which an administrator checks the state before the fix.
var shows = regexp.MustCompile(`To (show|list|find|print) [^.]*, run "`)

// No fix can be pasted that takes down a physical function, its driver, or the isolation of virtual machines.
func TestFix_harmfulIsManual(t *testing.T) {
	for _, p := range faults() {
		for _, f := range p.look(t) {
			manual := f.FixType == doctor.FixManual && shows.MatchString(f.Fix)
			// which nobody can use
			lost := f.FixType == doctor.FixDisruptive && f.Warning != "" || f.Check == "hca-present"
			if hurts.MatchString(f.Fix+f.Text) && !manual && !lost {
				t.Errorf("%s: %s", p.name, f.Fix)
			}
		}
	}
}
