// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/rdma-spec/rdma-spec/deploy/release/internal/bundle"
	"github.com/rdma-spec/rdma-spec/deploy/release/internal/chart"
)

// writeAll writes all files of a release: the image, an archive and packages for each architecture, the chart,
// daemonset.yaml with the release's image, the bills of materials, and the checksums of these files.
func (r *release) writeAll() error {
	if err := os.RemoveAll(r.output); err != nil {
		return err
	}
	if err := os.MkdirAll(r.output, 0o755); err != nil {
		return err
	}
	if err := r.writeImage(); err != nil {
		return err
	}
	if err := r.writeManifest(); err != nil {
		return err
	}
	for _, arch := range architectures {
		if err := r.writeArchive(arch.name); err != nil {
			return err
		}
	}
	if err := r.writePackages(); err != nil {
		return err
	}
	bills, err := bundle.Dir(filepath.Join(r.root, "bin/sbom"))
	if err != nil {
		return fmt.Errorf("%w: run make sbom", err)
	}
	for _, f := range bills {
		if err := r.write(f.Name, f.Content); err != nil {
			return err
		}
	}
	if _, err := chart.Package(r.root, r.output, r.version, r.tag, r.date); err != nil {
		return err
	}
	if err := r.writeKubectl(); err != nil {
		return err
	}
	return r.writeSums()
}

// writeManifest writes the manifest for kubectl apply -f: the plugin's own namespace, followed by the base.
func (r *release) writeManifest() error {
	var texts [][]byte
	for _, file := range []string{"components/namespace/namespace.yaml", "base/daemonset.yaml"} {
		text, err := os.ReadFile(filepath.Join(r.root, "deploy/kustomize", file))
		if err != nil {
			return err
		}
		texts = append(texts, text)
	}
	return r.write("daemonset.yaml", r.withImage(bytes.Join(texts, []byte("---\n"))))
}

// withImage sets the image in a plain manifest to the release's image.
func (r *release) withImage(manifest []byte) []byte {
	return bytes.ReplaceAll(manifest, []byte("image: rdma-spec:devel\n"), []byte("image: "+repository+":"+r.tag+"\n"))
}

// writeArchive writes an archive of the programs, the documentation, and the files for a manual installation.
func (r *release) writeArchive(arch string) error {
	top := fmt.Sprintf("rdma-spec_%s_linux_%s", r.version, arch)
	var files []bundle.File
	for _, f := range r.programs[arch] {
		files = append(files, bundle.File{Name: top + "/bin/" + f.Name, Mode: 0o755, Content: f.Content})
	}
	for _, name := range []string{"LICENSE", "README.md", "CHANGELOG.md"} {
		f, err := bundle.Read(filepath.Join(r.root, name), top+"/"+name, 0o644)
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	for _, dir := range []string{
		"docs", "deploy/admission", "deploy/ansible", "deploy/containerd", "deploy/device-plugins", "deploy/examples",
		"deploy/helm/nri-rdma/files", "deploy/kustomize", "deploy/node-readiness", "deploy/npd", "deploy/prometheus",
		"deploy/systemd",
	} {
		all, err := bundle.Dir(filepath.Join(r.root, dir))
		if err != nil {
			return err
		}
		for _, f := range all {
			if !strings.HasSuffix(f.Name, ".go") {
				f.Name = top + "/" + dir + "/" + f.Name
				f.Content = r.withImage(f.Content)
				files = append(files, f)
			}
		}
	}
	_, err := r.writeTar(top+".tar.gz", files)
	return err
}

// writeTar writes files as a compressed archive, and returns the archive's content.
func (r *release) writeTar(name string, files []bundle.File) ([]byte, error) {
	text, err := bundle.Tar(files, r.date)
	if err != nil {
		return nil, err
	}
	if text, err = bundle.Gzip(text); err != nil {
		return nil, err
	}
	return text, r.write(name, text)
}

// writeSums writes the SHA-256 sums of the release's files, in the format that sha256sum reads.
func (r *release) writeSums() error {
	entries, err := os.ReadDir(r.output)
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		content, err := os.ReadFile(filepath.Join(r.output, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(content), e.Name())
	}
	return r.write("SHA256SUMS", []byte(sums.String()))
}
