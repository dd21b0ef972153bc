// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/rdma-spec/rdma-spec/deploy/release/internal/bundle"
	"github.com/rdma-spec/rdma-spec/deploy/release/internal/image"
)

// repository is the repository to which the project publishes its image. The image's tags are versions.
const repository = "ghcr.io/rdma-spec/rdma-spec"

// architectures lists the architectures of the programs. The programs for each architecture are in a directory below
// bin that has the architecture's name.
var architectures = []struct {
	name    string
	machine elf.Machine
}{{"amd64", elf.EM_X86_64}, {"arm64", elf.EM_AARCH64}}

// programs lists the names of all programs. imagePrograms lists the programs in the image, which runs on a cluster's
// nodes.
var (
	programs      = []string{"nri-rdma", "rdma-hook", "rdma-spec"}
	imagePrograms = []string{"nri-rdma", "rdma-spec"}
)

// release is one version of the project.
type release struct {
	root, output string
	tag          string    // as printed by git describe
	version      string    // the tag as a semantic version
	date         time.Time // of every file
	key          string    // the file of the OpenPGP key that signs deb and rpm; if empty, the packages are not signed
	programs     map[string][]bundle.File
}

// newRelease reads the programs for all architectures, and returns the release.
func newRelease(root, output, tag string, date time.Time) (*release, error) {
	r := &release{root: root, output: output, tag: tag, version: semantic(tag), date: date,
		programs: map[string][]bundle.File{}}
	for _, arch := range architectures {
		for _, name := range programs {
			file := filepath.Join(root, "bin", arch.name, name)
			f, err := bundle.Read(file, name, 0o755)
			if err == nil {
				err = isFor(arch.machine, f.Content)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w: run make %s", file, err, arch.name)
			}
			r.programs[arch.name] = append(r.programs[arch.name], f)
		}
	}
	return r, os.MkdirAll(output, 0o755)
}

// isFor returns an error if a program is not a Linux program for the given machine.
func isFor(machine elf.Machine, program []byte) error {
	header, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return fmt.Errorf("not a Linux program: %w", err)
	}
	if header.Machine != machine {
		return fmt.Errorf("the program is for %s, not for %s", header.Machine, machine)
	}
	return nil
}

// semantic converts the output of git describe to a semantic version. The output is v1.2.3, v1.2.3-4-gabcdef0-dirty,
// or, without a tag, abcdef0.
func semantic(tag string) string {
	if version, ok := strings.CutPrefix(tag, "v"); ok &&
		regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`).MatchString(version) {
		return version
	}
	return "0.0.0-g" + regexp.MustCompile(`[^0-9A-Za-z.-]+`).ReplaceAllString(tag, "-")
}

// writeImage writes the image as an OCI layout, and as an archive of this layout.
func (r *release) writeImage() error {
	dir := filepath.Join(r.output, "image")
	contents := map[string][]bundle.File{}
	for arch, files := range r.programs {
		contents[arch] = slices.DeleteFunc(slices.Clone(files),
			func(f bundle.File) bool { return !slices.Contains(imagePrograms, f.Name) })
	}
	err := image.Write(image.Options{Name: repository + ":" + r.tag, Version: r.tag, Created: r.date,
		Programs: contents}, dir)
	if err != nil {
		return err
	}
	files, err := bundle.Dir(dir)
	if err != nil {
		return err
	}
	text, err := bundle.Tar(files, r.date)
	if err != nil {
		return err
	}
	return r.write("image.tar", text)
}

func (r *release) write(name string, content []byte) error {
	return os.WriteFile(filepath.Join(r.output, name), content, 0o644)
}
