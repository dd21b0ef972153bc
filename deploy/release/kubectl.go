// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/rdma-spec/rdma-spec/deploy/release/internal/bundle"
)

// writeKubectl writes an archive of kubectl rdma for each system that it was built for, and the manifest with which
// krew, kubectl's manager of plugins, installs it from them.
func (r *release) writeKubectl() error {
	dir := filepath.Join(r.root, "bin/kubectl")
	systems, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("%w: run make kubectl", err)
	}
	license, err := bundle.Read(filepath.Join(r.root, "LICENSE"), "LICENSE", 0o644)
	if err != nil {
		return err
	}
	manifest := fmt.Sprintf(krewHead, r.version)
	for _, system := range systems {
		files, err := bundle.Dir(filepath.Join(dir, system.Name()))
		if err != nil {
			return err
		}
		program := files[0].Name // kubectl-rdma, or kubectl-rdma.exe
		files[0].Mode = 0o755
		name := fmt.Sprintf("kubectl-rdma_%s_%s.tar.gz", r.version, system.Name())
		text, err := r.writeTar(name, append(files, license))
		if err != nil {
			return err
		}
		goos, arch, _ := strings.Cut(system.Name(), "_")
		manifest += fmt.Sprintf(krewPlatform, goos, arch, r.tag, name, sha256.Sum256(text), program)
	}
	return r.write("kubectl-rdma.yaml", []byte(manifest))
}

const krewHead = `apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: rdma
spec:
  version: v%s
  homepage: https://github.com/rdma-spec/rdma-spec
  shortDescription: Look at RDMA on all nodes of a cluster
  description: |
    Lists the RDMA resources of all nodes and the pods that hold them, the HCAs, the containers
    that lack memlock or IPC_LOCK, and what is wrong. All but the first ask the DaemonSet nri-rdma.
  platforms:
`

const krewPlatform = `  - selector: {matchLabels: {os: %s, arch: %s}}
    uri: https://github.com/rdma-spec/rdma-spec/releases/download/%s/%s
    sha256: %x
    bin: %s
`
