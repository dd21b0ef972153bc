// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// debianContainerd returns the part that contains Debian's containerd 1.6, whose NRI is older than today's.
func (r recipeBook) debianContainerd() part {
	return r.programs("containerd-1.6", "containerd", "usr/bin")
}

// podman returns the part that contains Podman 4.3, and a library that it needs and the host may lack.
func (r recipeBook) podman() part {
	return part{name: "podman", recipe: []string{"1"}, cost: "10 s",
		build: func(ctx context.Context, dir string) error {
			return r.debian.unpack(ctx, dir, "podman", "libsubid4")
		}}
}

// podman13 returns the part that contains Debian 13's Podman 5.4 with all its dependencies. It runs with chroot.
func (r recipeBook) podman13() part {
	return part{name: "podman-13", recipe: []string{"1"}, cost: "20 s",
		build: func(ctx context.Context, dir string) error {
			return debian13(r.cache).tree(ctx, dir, "podman", "crun")
		}}
}

// programs returns the part that contains one directory of a Debian package.
func (r recipeBook) programs(name, pkg, inside string) part {
	return part{name: name, recipe: []string{"1", pkg, inside}, cost: "10 s",
		build: func(ctx context.Context, dir string) error {
			whole := filepath.Join(dir, "whole")
			if err := r.debian.unpack(ctx, whole, pkg); err != nil {
				return err
			}
			programs, err := os.ReadDir(filepath.Join(whole, inside))
			if err != nil {
				return err
			}
			for _, program := range programs {
				err := os.Rename(filepath.Join(whole, inside, program.Name()), filepath.Join(dir, program.Name()))
				if err != nil {
					return err
				}
			}
			return os.RemoveAll(whole)
		}}
}

// disk returns the part that contains an empty, sparse ext4 file system. The guest writes to a snapshot of it.
func (r recipeBook) disk() part {
	const size = 16 << 30
	return part{name: "disk", recipe: []string{"1", fmt.Sprint(size)}, cost: "a second",
		build: func(ctx context.Context, dir string) error {
			path := filepath.Join(dir, "disk.img")
			if err := os.WriteFile(path, nil, 0o644); err != nil {
				return err
			}
			if err := os.Truncate(path, size); err != nil {
				return err
			}
			return run(ctx, "/", nil, "mkfs.ext4", "-q", "-F", "-m0", "-O", "^has_journal", "-E",
				"lazy_itable_init=1,nodiscard", path)
		}}
}
