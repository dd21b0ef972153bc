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

// Read answers which CDI files the node below a root has, whether they are right, and who may use them. It calls scan,
// which returns the node's HCAs, only if there are CDI files of HCAs.
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

// dockerVersion is what dockerd prints: "Docker version 28.3.2, build e77ff99".
var dockerVersion = regexp.MustCompile(`version ([0-9][^, \n]*)`)

// docker reads what Docker makes of CDI.
func docker(ctx context.Context, root string) *Docker {
	var d Docker
	// its version is then unknown
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

// Files are the CDI files of a node, in the order of their priority, and who may use them besides the runtimes of pods.
type Files struct {
	Files  []Found `json:"files"`
	Docker *Docker `json:"docker,omitempty"` // where it is installed
	Podman bool    `json:"podman,omitempty"` // it is installed
}

// Docker is what Docker makes of CDI.
type Docker struct {
	Version string   `json:"version,omitempty"`     // "" where it is unknown
	CDI     *bool    `json:"cdi,omitempty"`         // what daemon.json says
	Dirs    []string `json:"directories,omitempty"` // where it looks for CDI files; empty where it does not say
	Error   string   `json:"error,omitempty"`       // why daemon.json cannot be read
}
