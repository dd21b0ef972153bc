// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"github.com/rdma-spec/rdma-spec/deploy/release/internal/bundle"
	"github.com/rdma-spec/rdma-spec/deploy/release/internal/chart"
	"github.com/rdma-spec/rdma-spec/deploy/release/internal/packages"
)

// writeAll writes everything that a release has: the image, an archive and packages for each architecture, the chart,
// daemonset.yaml with the release's image, the bill of materials, and the checksums of all of them.
func (r *release) writeAll() error {
	if err := os.RemoveAll(r.output); err != nil {
		return err
	}
	if err := os.MkdirAll(r.output, 0o755); err != nil {
		return err
	}
	files, err := r.files()
	if err != nil {
		return err
	}
	if err := r.writeImage(); err != nil {
		return err
	}
	manifest, err := os.ReadFile(filepath.Join(r.root, "deploy/kustomize/base/daemonset.yaml"))
	if err != nil {
		return err
	}
	if err := r.write("daemonset.yaml", r.withImage(manifest)); err != nil {
		return err
	}
	for _, arch := range architectures {
		if err := r.writeArchive(arch.name); err != nil {
			return err
		}
		for _, format := range packages.Formats {
			if err := r.writePackage(format, arch.name, files); err != nil {
				return err
			}
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

// withImage puts the release's image into a plain manifest.
func (r *release) withImage(manifest []byte) []byte {
	return bytes.ReplaceAll(manifest, []byte("image: rdma-spec:devel\n"), []byte("image: "+repository+":"+r.tag+"\n"))
}

// writeArchive writes the programs, the documentation, and the files for an installation by hand.
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
	for _, folder := range []string{
		"docs", "deploy/admission", "deploy/ansible", "deploy/containerd", "deploy/device-plugins", "deploy/examples",
		"deploy/helm/nri-rdma/files", "deploy/kustomize", "deploy/node-readiness", "deploy/npd", "deploy/prometheus", "deploy/systemd",
	} {
		all, err := bundle.Folder(filepath.Join(r.root, folder))
		if err != nil {
			return err
		}
		for _, f := range all {
			if !strings.HasSuffix(f.Name, ".go") {
				f.Name, f.Content = top+"/"+folder+"/"+f.Name, r.withImage(f.Content)
				files = append(files, f)
			}
		}
	}
	_, err := r.writeTar(top+".tar.gz", files)
	return err
}

// writeTar writes files as a compressed archive, and returns its content.
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

func (r *release) writePackage(format, arch string, files []bundle.File) error {
	var config []bundle.File
	for _, name := range []string{"config.yaml", "doctor.yaml"} {
		f, err := bundle.Read(filepath.Join(r.root, packages.Scripts, name), "etc/rdma-spec/"+name, 0o644)
		if err != nil {
			return err
		}
		config = append(config, f)
	}
	for _, f := range r.programs[arch] {
		files = append(files, bundle.File{Name: "usr/bin/" + f.Name, Mode: 0o755, Content: f.Content})
	}
	_, err := packages.Write(packages.Options{
		Root: r.root, Arch: arch, Version: r.version, Date: r.date, Files: files, Config: config,
	}, format, r.output)
	return err
}

// files are those of a package that are the same for each architecture.
func (r *release) files() (files []bundle.File, err error) {
	for from, to := range map[string]string{
		"deploy/systemd/nri-rdma.service":           "usr/lib/systemd/system/nri-rdma.service",
		"deploy/systemd/nri-rdma-validator.service": "usr/lib/systemd/system/nri-rdma-validator.service",
		"deploy/systemd/rdma-spec-cdi.service":      "usr/lib/systemd/system/rdma-spec-cdi.service",
		"deploy/systemd/90-rdma-spec-cdi.rules":     "usr/lib/udev/rules.d/90-rdma-spec-cdi.rules",
		"deploy/systemd/rdma-spec-cdi.timer":        "usr/lib/systemd/system/rdma-spec-cdi.timer",
		"deploy/systemd/rdma-spec-doctor.service":   "usr/lib/systemd/system/rdma-spec-doctor.service",
		"deploy/systemd/rdma-spec-doctor.timer":     "usr/lib/systemd/system/rdma-spec-doctor.timer",
		"deploy/systemd/nri-rdma-http.conf":         "usr/share/doc/rdma-spec/nri-rdma-http.conf",
		"deploy/systemd/nri-rdma-repair.conf":       "usr/share/doc/rdma-spec/nri-rdma-repair.conf",
		"LICENSE":                                   "usr/share/doc/rdma-spec/copyright",
	} {
		f, err := bundle.Read(filepath.Join(r.root, from), to, 0o644)
		if err != nil {
			return nil, err
		}
		// What is installed by hand is in /usr/local.
		f.Content = []byte(strings.ReplaceAll(string(f.Content), "/usr/local/bin/", "/usr/bin/"))
		files = append(files, f)
	}
	for shell, to := range map[string]string{
		"bash": "usr/share/bash-completion/completions/rdma-spec",
		"zsh":  "usr/share/zsh/vendor-completions/_rdma-spec",
		"fish": "usr/share/fish/vendor_completions.d/rdma-spec.fish",
	} {
		text, err := r.run("rdma-spec", "completion", shell)
		if err != nil {
			return nil, err
		}
		files = append(files, bundle.File{Name: to, Mode: 0o644, Content: []byte(text)})
	}
	for _, page := range []struct {
		program string
		chapter int
		summary string
	}{{"nri-rdma", 8, "NRI plugin that gives RDMA containers what they need"},
		{"rdma-spec", 1, "look at and set up nodes for RDMA containers"}} {
		sections, err := r.help(page.program)
		if err != nil {
			return nil, err
		}
		text, err := bundle.Gzip(packages.Manual(page.program, page.chapter, page.summary, r.tag, r.date, sections))
		if err != nil {
			return nil, err
		}
		name := fmt.Sprintf("usr/share/man/man%d/%s.%d.gz", page.chapter, page.program, page.chapter)
		files = append(files, bundle.File{Name: name, Mode: 0o644, Content: text})
	}
	return files, nil
}

// help returns what a program and each of its subcommands print about themselves.
func (r *release) help(program string) ([]packages.Section, error) {
	var sections []packages.Section
	seen := map[string]bool{}
	for queue := [][]string{{program}}; len(queue) > 0; queue = queue[1:] {
		command := queue[0]
		text, err := r.run(append(command[:len(command):len(command)], "--help")...)
		if err != nil {
			return nil, err
		}
		if seen[text] {
			continue // not a subcommand: its help is that of the command
		}
		seen[text] = true
		sections = append(sections, packages.Section{Command: strings.Join(command, " "), Help: text})
		for _, word := range indented(text) {
			queue = append(queue, append(command[:len(command):len(command)], word))
		}
	}
	return sections, nil
}

// indented returns the words that begin the indented lines of a help text, as subcommands do.
func indented(help string) (words []string) {
	for _, line := range regexp.MustCompile(`(?m)^  ([a-z]+)  `).FindAllStringSubmatch(help, -1) {
		if line[1] != "help" && line[1] != "completion" {
			words = append(words, line[1])
		}
	}
	return words
}

// run runs a program of the release on this machine.
func (r *release) run(command ...string) (string, error) {
	for _, arch := range architectures {
		if arch.name != runtime.GOARCH {
			continue
		}
		out, err := exec.Command(filepath.Join(r.root, "bin", arch.folder, command[0]), command[1:]...).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("%v: %w", command, err)
		}
		return string(out), nil
	}
	return "", fmt.Errorf("the release has no programs for %s, to ask for their help", runtime.GOARCH)
}

// writeSums writes the SHA-256 sums of what was written, as sha256sum reads them.
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
