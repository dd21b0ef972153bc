// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// images returns the part that contains the container images. They are docker-archives, so no registry is needed.
func (r recipeBook) images() part {
	recipe := append([]string{"2", runtime.GOARCH}, embedded("image/pause.c")...)
	return part{name: "images", recipe: recipe, cost: "a second", build: func(ctx context.Context, dir string) error {
		source := filepath.Join(dir, "pause.c")
		program := filepath.Join(dir, "pause")
		if err := os.WriteFile(source, []byte(embedded("image/pause.c")[0]), 0o644); err != nil {
			return err
		}
		if err := run(ctx, dir, nil, "gcc", "-static", "-Os", "-s", "-o", program, source); err != nil {
			return err
		}
		if err := pauseImage(program, filepath.Join(dir, "pause.tar")); err != nil {
			return err
		}
		return busyboxImage(ctx, filepath.Join(dir, "busybox.tar"))
	}}
}

func pauseImage(program, path string) error {
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	var layer layer
	layer.file("pause", 0o755, content)
	return writeImage(path, ImageName("pause"), layer, imageConfig{Entrypoint: []string{"/pause"}})
}

// busyboxImage writes an image that contains busybox under all its names, and directories on which the host's programs
// can be mounted.
func busyboxImage(ctx context.Context, path string) error {
	content, err := os.ReadFile(busybox)
	if err != nil {
		return err
	}
	names, err := output(ctx, "/", nil, busybox, "--list")
	if err != nil {
		return err
	}
	var layer layer
	for _, dir := range []string{"bin", "sbin", "etc", "proc", "sys", "dev", "root", "run", "usr",
		"var", "lib", "lib64"} {
		layer.dir(dir, 0o755)
	}
	layer.dir("tmp", 0o1777)
	layer.file("bin/busybox", 0o755, content)
	for _, name := range strings.Fields(names) {
		if name != "busybox" {
			layer.link("bin/"+name, "busybox")
		}
	}
	layer.file("etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/:/bin/sh\n"))
	layer.file("etc/group", 0o644, []byte("root:x:0:\nuser:x:1000:\n"))
	return writeImage(path, ImageName("busybox"), layer, imageConfig{Cmd: []string{"sh"},
		Env: []string{"PATH=/bin:/sbin:/usr/sbin:/usr/bin"}})
}

// WriteImage writes a docker-archive of an image FROM scratch. programs maps paths in the image to programs of this
// machine. name is the image's reference after an import.
func WriteImage(path, name string, programs map[string]string, entrypoint ...string) error {
	var layer layer
	for _, place := range slices.Sorted(maps.Keys(programs)) {
		content, err := os.ReadFile(programs[place])
		if err != nil {
			return err
		}
		layer.file(strings.TrimPrefix(place, "/"), 0o755, content)
	}
	return writeImage(path, name, layer, imageConfig{Entrypoint: entrypoint})
}

// layer collects the files of an image's only layer.
type layer struct{ entries []entry }

type entry struct {
	header  tar.Header
	content []byte
}

func (l *layer) dir(name string, mode int64) {
	l.entries = append(l.entries, entry{header: tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode}})
}

func (l *layer) link(name, to string) {
	l.entries = append(l.entries, entry{header: tar.Header{Typeflag: tar.TypeSymlink, Name: name,
		Linkname: to, Mode: 0o777}})
}

func (l *layer) file(name string, mode int64, content []byte) {
	header := tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(content))}
	l.entries = append(l.entries, entry{header, content})
}

// archive packs the files into a tar archive that has the same bytes each time.
func (l *layer) archive() ([]byte, error) {
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	for _, e := range l.entries {
		e.header.ModTime = time.Unix(0, 0)
		if err := w.WriteHeader(&e.header); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return packed.Bytes(), err
}

// imageConfig is the part of the image's configuration that describes its process.
type imageConfig struct {
	Entrypoint []string `json:",omitempty"`
	Cmd        []string `json:",omitempty"`
	Env        []string `json:",omitempty"`
}

// writeImage writes a docker-archive: the layer, the image's configuration, and a manifest that names both.
func writeImage(path, name string, files layer, process imageConfig) error {
	content, err := files.archive()
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       process,
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest(content)}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]map[string]any{{
		"Config": digest(config) + ".json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"},
	}})
	if err != nil {
		return err
	}
	var image layer
	image.file("layer.tar", 0o644, content)
	image.file(digest(config)+".json", 0o644, config)
	image.file("manifest.json", 0o644, manifest)
	packed, err := image.archive()
	if err != nil {
		return err
	}
	return os.WriteFile(path, packed, 0o644)
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}
