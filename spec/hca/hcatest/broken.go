// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hcatest

import (
	"fmt"
	"strings"
	"testing"
)

// Broken returns the root of a node with one working HCA, mlx5_0, and with broken HCAs. The name of each broken HCA
// describes its fault.
func Broken(t testing.TB) string { return BrokenFiles().Root(t) }

// brokenNames are the names of the HCAs of Broken, in the order of their verbs devices.
var brokenNames = []string{
	"mlx5_0", "attribute_is_folder", "attribute_is_fifo", "attribute_is_link", "garbage", "too_long", "no_ports",
	"ports_is_file", "no_verbs", "bad_number", "node_is_link", "node_is_block", "node_is_other", "node_is_folder",
	"node_missing", "class_is_file", "gone", "escapes",
}

// BrokenFiles returns the files of Broken. A test can change these files.
func BrokenFiles() Files {
	var n Node
	at := map[string]string{}
	verbs := map[string]string{}
	for i, name := range brokenNames {
		pci := fmt.Sprintf("0000:%02x:00.0", 0x10+i)
		n.HCAs = append(n.HCAs, HCA{Name: name, PCI: pci, Firmware: "20.36.1010", NoMAD: i > 0, Ports: []Port{{}}})
		at[name] = Dir(name, pci)
		verbs[name] = fmt.Sprintf("%s/infiniband_verbs/uverbs%d", bus(pci), i)
	}
	f := n.Files()
	table := f["device-table.txt"]
	row := func(name, with string) {
		i := strings.LastIndex(verbs[name], "/")
		for line := range strings.Lines(table) {
			if strings.HasPrefix(line, "/dev/infiniband"+verbs[name][i:]+" ") {
				table = strings.Replace(table, line, strings.ReplaceAll(with, "PATH", "/dev/infiniband"+verbs[name][i:]), 1)
			}
		}
	}
	node := func(name string) string { return "dev/infiniband" + verbs[name][strings.LastIndex(verbs[name], "/"):] }

	f.With(Files{
		at["attribute_is_folder"] + "/node_type/":       "",
		at["attribute_is_fifo"] + "/node_guid":          FIFO,
		at["attribute_is_link"] + "/node_guid":          Link("fw_ver"),
		at["garbage"] + "/node_type":                    "\x00\x01\xff",
		at["garbage"] + "/node_guid":                    "deadbeef\n",
		at["garbage"] + "/ports/1/state":                "ACTIVE\n",
		at["garbage"] + "/ports/1/phys_state":           ": \n",
		at["garbage"] + "/ports/one/state":              "4: ACTIVE\n",
		at["garbage"] + "/ports/1/gids/0":               "../../etc\n",
		at["garbage"] + "/ports/1/lid":                  "0xg\n",
		at["too_long"] + "/node_guid":                   strings.Repeat("b859:9f03:", 1<<20/10),
		at["too_long"] + "/ports/1/rate":                strings.Repeat("9", 4096),
		at["ports_is_file"] + "/ports":                  "1\n",
		verbs["bad_number"] + "/dev":                    "8:0:1\n",
		node("node_is_link"):                            Link("uverbs0"),
		node("node_is_folder") + "/":                    "",
		"sys/class/infiniband/class_is_file":            "mlx5_0\n",
		"sys/class/infiniband/escapes":                  Link("../../../../../../../../etc"),
		"sys/class/infiniband/not an HCA":               "",
		"sys/class/infiniband_verbs/uverbs99/dev":       "231:300\n",
		"sys/class/infiniband_verbs/uverbs99/ibdev":     "moved_away\n",
		"sys/class/infiniband_verbs/uverbs98/dev":       "231:301\n",
		"sys/class/infiniband_verbs/uverbs98/ibdev":     "../../../etc\n",
		"sys/class/infiniband_verbs/uverbs97":           Link("../../devices/nowhere"),
		"sys/class/infiniband_verbs/uverbs96":           "231:302\n",
		"sys/class/infiniband_verbs/not_a_verbs_device": Link("../infiniband_mad/umad0"),
	})
	f.Without(at["no_ports"]+"/ports", at["gone"], verbs["no_verbs"], "sys/class/infiniband_verbs/"+
		verbs["no_verbs"][strings.LastIndex(verbs["no_verbs"], "/")+1:])
	row("node_is_block", "PATH b 0660 0 6 231 203\n")
	row("node_is_other", "PATH c 0666 0 0 1 3\n")
	row("node_missing", "PATH is not a row\n")
	f["device-table.txt"] = table
	return f
}
