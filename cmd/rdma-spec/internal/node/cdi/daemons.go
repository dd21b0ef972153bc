// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"regexp"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/spec/files"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// Read returns the CDI files of the node under a root, with their problems, and the container engines that can use the
// files. It calls scan, which returns the node's HCAs, only if a CDI file defines HCAs.
func Read(ctx context.Context, root string, scan func() (*hca.Inventory, error)) (Files, error) {
	found, err := Look(root, scan)
	answer := Files{Files: found}
	if process.HasUnit(root, "docker.service") {
		answer.Docker = docker(ctx, root)
	}
	_, noPodman := os.Stat(files.Below(root, "usr/bin/podman"))
	answer.Podman = noPodman == nil
	return answer, err
}

// dockerVersion matches the output of dockerd: "Docker version 28.3.2, build e77ff99".
var dockerVersion = regexp.MustCompile(`version ([0-9][^, \n]*)`)

// docker reads Docker's CDI settings.
func docker(ctx context.Context, root string) *Docker {
	var d Docker
	// after an error, the version is unknown
	out, _ := exec.CommandContext(ctx, files.Below(root, "usr/bin/dockerd"), "--version").Output()
	if version := dockerVersion.FindSubmatch(out); version != nil {
		d.Version = string(version[1])
	}
	text, err := os.ReadFile(files.Below(root, "etc/docker/daemon.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return &d
	}
	var said struct {
		Features struct {
			CDI *bool `json:"cdi"`
		} `json:"features"`
		Dirs []string `json:"cdi-spec-dirs"`
	}
	if err = files.Cause(err); err == nil {
		err = json.Unmarshal(text, &said)
	}
	if err != nil {
		d.Error = err.Error()
	}
	d.CDI = said.Features.CDI
	d.Dirs = said.Dirs
	return &d
}

// Files lists the CDI files of a node by increasing priority, and the container engines other than the pods' runtimes
// that can use the files.
type Files struct {
	Files  []Found `json:"files"`
	Docker *Docker `json:"docker,omitempty"` // nil if Docker is not installed
	Podman bool    `json:"podman,omitempty"` // Podman is installed
}

// Docker describes Docker's CDI settings.
type Docker struct {
	Version string   `json:"version,omitempty"`     // "" if unknown
	CDI     *bool    `json:"cdi,omitempty"`         // the setting in daemon.json
	Dirs    []string `json:"directories,omitempty"` // cdi-spec-dirs in daemon.json
	Error   string   `json:"error,omitempty"`       // why daemon.json cannot be read
}
