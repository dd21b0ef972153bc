// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"regexp"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/archive"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

// RDMACNI is what a node has of the plugin rdma-cni. The files that say so can have credentials, so that an archive has
// only this.
type RDMACNI struct {
	Installed  bool   `json:"installed"`            // its program is there
	Configured string `json:"configured,omitempty"` // the network configuration that names it
}

// rdmaCNIPrograms are where its program is: usually, on OpenShift, and on K3s, and rdmaCNIConfigs where it is
// configured.
var (
	rdmaCNIPrograms = []string{
		"opt/cni/bin/rdma", "var/lib/cni/bin/rdma",
		"var/lib/rancher/k3s/data/*/bin/rdma", "var/lib/rancher/k3s/data/cni/rdma",
	}
	rdmaCNIConfigs = []string{"etc/cni/net.d/*", "var/lib/rancher/k3s/agent/etc/cni/net.d/*"}
)

// rdmaCNI is a network configuration that names the plugin.
var rdmaCNI = regexp.MustCompile(`"type"\s*:\s*"rdma"`)

// readRDMACNI reads what cannot be read as absent.
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
