// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package crio runs CRI-O on the node, and runs pods in it. It does not know what is tested.
package crio

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"text/template"

	"github.com/rdma-spec/rdma-spec/test/node"
	"github.com/rdma-spec/rdma-spec/test/node/pods"
)

const (
	// Socket is the path of CRI-O's socket.
	Socket = "/run/crio/crio.sock"
	// NRISocket is the path of its NRI socket.
	NRISocket = "/run/nri/nri.sock"
	// DropIns is the directory in which CRI-O reads every file, whatever the file's name.
	DropIns = dir + "/crio.conf.d"

	dir     = "/etc/crio"
	config  = dir + "/crio.conf"
	policy  = dir + "/policy.json"
	storage = "/var/lib/containers/storage"
	running = "/run/containers/storage"
)

// acceptAll is a signature policy that accepts all images, because the node's own images are not signed.
const acceptAll = `{"default": [{"type": "insecureAcceptAnything"}]}`

//go:embed crio.conf.tmpl
var configText string

// CRIO is a running CRI-O.
type CRIO struct{ *pods.Server }

// Start runs CRI-O with the images pause and busybox, and without drop-ins. CRI-O uses runc, because its specs are too
// new for Debian's crun. It keeps the state that an earlier CRI-O left on this node.
func Start(ctx context.Context) (*CRIO, error) {
	parts, err := node.Parts()
	if err != nil {
		return nil, err
	}
	if err := writeConfig(parts); err != nil {
		return nil, err
	}
	// CRI-O cannot import archives, so the images are copied to the storage that it reads.
	for _, image := range []string{"pause", "busybox"} {
		to := "containers-storage:[overlay@" + storage + "+" + running + "]" + node.ImageName(image)
		out, err := exec.CommandContext(ctx, "skopeo", "--policy", policy, "copy", "docker-archive:"+
			parts.Image(image), to).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("cannot store image %s: %w: %s", image, err, out)
		}
	}
	server, err := pods.Serve(ctx, Socket, nil, filepath.Join(parts.CRIO(), "crio"), "--config", config,
		"--config-dir", DropIns)
	if err != nil {
		return nil, err
	}
	return &CRIO{server}, nil
}

func writeConfig(parts node.PartSet) error {
	var out bytes.Buffer
	err := template.Must(template.New("config").Parse(configText)).Execute(&out, map[string]any{
		"Root": storage, "RunRoot": running, "Socket": Socket, "NRISocket": NRISocket, "Policy": policy,
		"Runtime": parts.Runtime("runc"), "Pinns": filepath.Join(parts.CRIO(), "pinns"), "CNI": parts.CNI(),
		"Pause": node.ImageName("pause"),
	})
	if err != nil {
		return err
	}
	if err := os.RemoveAll(DropIns); err != nil {
		return err
	}
	if err := os.MkdirAll(DropIns, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(policy, []byte(acceptAll), 0o644); err != nil {
		return err
	}
	return os.WriteFile(config, out.Bytes(), 0o644)
}

// DropIn writes a file in crio.conf.d, which applies after the next start. If the text is empty, it removes the file.
func (c *CRIO) DropIn(name, text string) error {
	path := filepath.Join(DropIns, name)
	if text == "" {
		return os.Remove(path)
	}
	return os.WriteFile(path, []byte(text), 0o644)
}
