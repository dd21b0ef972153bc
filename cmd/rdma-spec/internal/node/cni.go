// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"regexp"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/archive"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

// RDMACNI describes the rdma-cni plugin on a node. Because the network configuration can contain credentials, an
// archive contains only this description.
type RDMACNI struct {
	Installed  bool   `json:"installed"`            // the plugin's program exists
	Configured string `json:"configured,omitempty"` // the network configuration that uses the plugin
}

// rdmaCNIPrograms are the paths of the plugin's program: the usual path, OpenShift's, and those of K3s. rdmaCNIConfigs
// are the paths of the network configurations.
var (
	rdmaCNIPrograms = []string{
		"opt/cni/bin/rdma", "var/lib/cni/bin/rdma",
		"var/lib/rancher/k3s/data/*/bin/rdma", "var/lib/rancher/k3s/data/cni/rdma",
	}
	rdmaCNIConfigs = []string{"etc/cni/net.d/*", "var/lib/rancher/k3s/agent/etc/cni/net.d/*"}
)

// rdmaCNI matches a network configuration that uses the plugin.
var rdmaCNI = regexp.MustCompile(`"type"\s*:\s*"rdma"`)

// readRDMACNI treats an unreadable file as missing.
func readRDMACNI(t files.Tree) (found RDMACNI) {
	for _, pattern := range rdmaCNIPrograms {
		names, _ := t.Match(pattern)
		found.Installed = found.Installed || len(names) > 0
	}
	for _, pattern := range rdmaCNIConfigs {
		names, _ := t.Match(pattern)
		for _, name := range names {
			if text, _ := t.Read(name, archive.MaxFile); rdmaCNI.Match(text) {
				found.Configured = "/" + name
			}
		}
	}
	return found
}
