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

// repository is where the project publishes its image. Its tags are versions.
const repository = "ghcr.io/rdma-spec/rdma-spec"

// architectures are those of the programs. Each is built into a directory of its name below bin.
var architectures = []struct {
	name    string
	machine elf.Machine
}{{"amd64", elf.EM_X86_64}, {"arm64", elf.EM_AARCH64}}

// programs are the names of all programs, and imagePrograms of those in the image, which a cluster's nodes run.
var (
	programs      = []string{"nri-rdma", "rdma-hook", "rdma-spec"}
	imagePrograms = []string{"nri-rdma", "rdma-spec"}
)

// release is one version of the project.
type release struct {
	root, output string
	tag          string    // as git describe prints it
	version      string    // the same as a semantic version
	date         time.Time // of every file
	key          string    // the file of the OpenPGP key for deb and rpm; "" leaves them without a signature
	programs     map[string][]bundle.File
}

// newRelease reads the programs.
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

// isFor returns an error where a program is not one for Linux on this machine.
func isFor(machine elf.Machine, program []byte) error {
	header, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return fmt.Errorf("not a program for Linux: %w", err)
	}
	if header.Machine != machine {
		return fmt.Errorf("a program for %s, not %s", header.Machine, machine)
	}
	return nil
}

// semantic makes a semantic version of what git describe prints: v1.2.3, v1.2.3-4-gabcdef0-dirty, or abcdef0 where
// there is no tag.
func semantic(tag string) string {
	if version, ok := strings.CutPrefix(tag, "v"); ok &&
		regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`).MatchString(version) {
		return version
	}
	return "0.0.0-g" + regexp.MustCompile(`[^0-9A-Za-z.-]+`).ReplaceAllString(tag, "-")
}

// writeImage writes the image as a layout, and as an archive of it.
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
