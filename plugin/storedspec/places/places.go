// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package places is a table of the paths that container runtimes use on a node. A node can have several runtimes,
// because Docker and some platforms use their own containerd. Paths begin with a slash, and are relative to the node's
// root directory.
package places

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Place contains the paths and units of a platform's container runtime.
type Place struct {
	Name   string // containerd, k3s, …
	Socket string // the CRI socket
	Config string // the configuration file
	// Template is the name of the template from which the platform renders Config. The template is in Config's directory.
	// Template is empty if administrators edit Config itself.
	Template string
	// DropIns is the directory of additional configuration files that the platform loads. DropIns is empty if Config lists
	// the directories.
	DropIns  string
	Programs []string
	Units    []string // systemd units; one of the units runs the runtime
}

// CRIO is the Place of CRI-O.
var CRIO = Place{
	Name: "cri-o", Socket: "/run/crio/crio.sock", Config: "/etc/crio/crio.conf", DropIns: "/etc/crio/crio.conf.d",
	Units: []string{"crio.service"}, Programs: []string{"/usr/bin/crio", "/usr/local/bin/crio"},
}

// Containerds are the Places of containerd. The first Place is not specific to a platform.
var Containerds = []Place{
	{
		Name: "containerd", Socket: "/run/containerd/containerd.sock", Config: "/etc/containerd/config.toml",
		Units:    []string{"containerd.service"},
		Programs: []string{"/usr/bin/containerd", "/usr/local/bin/containerd", "/opt/containerd/bin/containerd"},
	},
	{
		Name: "k3s", Socket: "/run/k3s/containerd/containerd.sock",
		Config:   "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
		Template: "config-v3.toml.tmpl", Units: []string{"k3s.service", "k3s-agent.service"},
		Programs: []string{"/var/lib/rancher/k3s/data/current/bin/containerd"},
	},
	{
		Name: "rke2", Socket: "/run/k3s/containerd/containerd.sock",
		Config:   "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
		Template: "config-v3.toml.tmpl", Units: []string{"rke2-server.service", "rke2-agent.service"},
		Programs: []string{"/var/lib/rancher/rke2/bin/containerd"},
	},
	{
		Name: "microk8s", Socket: "/var/snap/microk8s/common/run/containerd.sock",
		Config:   "/var/snap/microk8s/current/args/containerd-template.toml",
		Units:    []string{"snap.microk8s.daemon-containerd.service"},
		Programs: []string{"/snap/microk8s/current/bin/containerd"},
	},
	{
		Name: "k0s", Socket: "/run/k0s/containerd.sock", Config: "/etc/k0s/containerd.toml",
		DropIns: "/etc/k0s/containerd.d",
		Units:   []string{"k0sworker.service", "k0scontroller.service"}, Programs: []string{"/var/lib/k0s/bin/containerd"},
	},
}

// NRISocket is the default path of the NRI socket.
const NRISocket = "/var/run/nri/nri.sock"

// Sockets returns the paths of the sockets of places, below a root directory and without duplicates.
func Sockets(root string, of ...Place) (sockets []string) {
	for _, p := range of {
		if socket := filepath.Join(root, p.Socket); !slices.Contains(sockets, socket) {
			sockets = append(sockets, socket)
		}
	}
	return sockets
}

// Present returns the candidates that are sockets, or that cannot be examined because of missing permissions. If
// several paths lead to the same socket, Present returns only the first path.
func Present(candidates []string) (sockets []string) {
	var found []fs.FileInfo
	for _, c := range candidates {
		info, err := os.Stat(c)
		switch {
		case errors.Is(err, fs.ErrPermission):
			sockets = append(sockets, c)
		case err != nil || info.Mode().Type() != fs.ModeSocket:
		case !slices.ContainsFunc(found, func(other fs.FileInfo) bool { return os.SameFile(info, other) }):
			found = append(found, info)
			sockets = append(sockets, c)
		}
	}
	return sockets
}
