// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// kernel is Debian's: it has soft-RoCE, which the cloud flavour has not.
// The part holds vmlinuz and lib/modules/VERSION.
func (r recipeBook) kernel() part {
	const meta = "linux-image-amd64"
	return part{name: "kernel", recipe: []string{"1", meta, r.host}, cost: "20 s", build: func(ctx context.Context, folder string) error {
		name, err := dependency(ctx, meta, "linux-image-")
		if err != nil {
			return err
		}
		whole := filepath.Join(folder, "whole")
		if err := unpack(ctx, name, whole); err != nil {
			return err
		}
		version := strings.TrimPrefix(name, "linux-image-")
		if err := os.Rename(filepath.Join(whole, "boot", "vmlinuz-"+version), filepath.Join(folder, "vmlinuz")); err != nil {
			return err
		}
		if err := os.Rename(filepath.Join(whole, "lib"), filepath.Join(folder, "lib")); err != nil {
			return err
		}
		// No part of the guest's hardware, and most of the package.
		for _, unused := range []string{"sound", "drivers/gpu", "drivers/media", "drivers/net/wireless", "drivers/iio", "drivers/staging"} {
			if err := os.RemoveAll(filepath.Join(folder, "lib/modules", version, "kernel", unused)); err != nil {
				return err
			}
		}
		if err := run(ctx, "/", nil, "depmod", "-b", folder, version); err != nil {
			return err
		}
		return os.RemoveAll(whole)
	}}
}

// kernelVersion is the version of the kernel in a kernel part's folder.
func kernelVersion(folder string) (string, error) {
	found, err := filepath.Glob(filepath.Join(folder, "lib/modules/*"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("%s has modules of %d kernels, want 1: remove the folder, it is built anew", folder, len(found))
	}
	return filepath.Base(found[0]), nil
}

// dependency returns the package that a meta package stands for.
func dependency(ctx context.Context, meta, prefix string) (name string, err error) {
	err = withFreshLists(ctx, os.Stderr, func() error {
		text, err := output(ctx, "/", nil, "apt-cache", "depends", meta)
		if err != nil {
			return err
		}
		for _, word := range strings.Fields(text) {
			if word != meta && strings.HasPrefix(word, prefix) {
				name = word
				return nil
			}
		}
		return fmt.Errorf("package %s depends on no %s*", meta, prefix)
	})
	return name, err
}

// debianContainerd is containerd 1.6, the runtime before today's NRI.
func (r recipeBook) debianContainerd() part {
	return r.programs("containerd-1.6", "containerd", "usr/bin")
}

// cni holds the CNI plugins.
func (r recipeBook) cni() part {
	return r.programs("cni", "containernetworking-plugins", "usr/lib/cni")
}

// programs is one folder of a Debian package.
func (r recipeBook) programs(name, pkg, inside string) part {
	return part{name: name, recipe: []string{"1", pkg, inside, r.host}, cost: "10 s", build: func(ctx context.Context, folder string) error {
		whole := filepath.Join(folder, "whole")
		if err := unpack(ctx, pkg, whole); err != nil {
			return err
		}
		programs, err := os.ReadDir(filepath.Join(whole, inside))
		if err != nil {
			return err
		}
		for _, program := range programs {
			err := os.Rename(filepath.Join(whole, inside, program.Name()), filepath.Join(folder, program.Name()))
			if err != nil {
				return err
			}
		}
		return os.RemoveAll(whole)
	}}
}

// disk is an empty ext4 file system, sparse. The guest writes to a snapshot.
func (r recipeBook) disk() part {
	const size = 16 << 30
	return part{name: "disk", recipe: []string{"1", fmt.Sprint(size)}, cost: "a second", build: func(ctx context.Context, folder string) error {
		path := filepath.Join(folder, "disk.img")
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			return err
		}
		if err := os.Truncate(path, size); err != nil {
			return err
		}
		return run(ctx, "/", nil, "mkfs.ext4", "-q", "-F", "-m0", "-O", "^has_journal", "-E", "lazy_itable_init=1,nodiscard", path)
	}}
}
