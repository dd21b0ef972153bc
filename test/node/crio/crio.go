// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package crio runs CRI-O inside the node, with pods in it. It knows nothing of what is tested.
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
	// Socket is where CRI-O listens.
	Socket = "/run/crio/crio.sock"
	// NRISocket is where its NRI listens.
	NRISocket = "/run/nri/nri.sock"
	// DropIns is the directory of which it reads every file, whatever its name.
	DropIns = dir + "/crio.conf.d"

	dir     = "/etc/crio"
	config  = dir + "/crio.conf"
	policy  = dir + "/policy.json"
	storage = "/var/lib/containers/storage"
	running = "/run/containers/storage"
)

// acceptAll is a signature policy: the node's own images are not signed.
const acceptAll = `{"default": [{"type": "insecureAcceptAnything"}]}`

//go:embed crio.conf.tmpl
var configText string

// CRIO is a running CRI-O.
type CRIO struct{ *pods.Server }

// Start runs CRI-O on runc (its specs are newer than Debian's crun knows) with the images pause and busybox, and no
// drop-ins. Its state is what an earlier one on this node has left.
func Start(ctx context.Context) (*CRIO, error) {
	parts, err := node.Parts()
	if err != nil {
		return nil, err
	}
	if err := writeConfig(parts); err != nil {
		return nil, err
	}
	// CRI-O imports no archives: the images go into the storage that it reads.
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

// DropIn writes a file of crio.conf.d, which counts from the next start on. Without text it takes the file away.
func (c *CRIO) DropIn(name, text string) error {
	path := filepath.Join(DropIns, name)
	if text == "" {
		return os.Remove(path)
	}
	return os.WriteFile(path, []byte(text), 0o644)
}
