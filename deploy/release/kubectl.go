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

// writeKubectl writes an archive of kubectl rdma for each system for which make kubectl built it, and the manifest with
// which krew, kubectl's plugin manager, installs kubectl rdma from these archives.
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
  shortDescription: Check RDMA on all nodes of a cluster
  description: |
    Lists the HCAs on all nodes, the containers that lack part of their grant, the faults, and the
    RDMA resources with the pods to which they are allocated. Only the list of resources works
    without the nri-rdma DaemonSet.
  platforms:
`

const krewPlatform = `  - selector: {matchLabels: {os: %s, arch: %s}}
    uri: https://github.com/rdma-spec/rdma-spec/releases/download/%s/%s
    sha256: %x
    bin: %s
`
