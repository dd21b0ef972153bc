// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// kernel returns the part that contains Debian 12's kernel: vmlinux and lib/modules/VERSION. It has soft-RoCE, which
// Debian's cloud kernel lacks.
func (r recipeBook) kernel() part {
	const meta = "linux-image-amd64"
	return part{name: "kernel", recipe: []string{"2", meta}, cost: "20 s",
		build: func(ctx context.Context, dir string) error {
			name, err := r.debian.dependency(ctx, meta, "linux-image-")
			if err != nil {
				return err
			}
			whole := filepath.Join(dir, "whole")
			if err := r.debian.unpack(ctx, whole, name); err != nil {
				return err
			}
			version := strings.TrimPrefix(name, "linux-image-")
			if err := decompress(ctx, filepath.Join(whole, "boot", "vmlinuz-"+version),
				filepath.Join(dir, "vmlinux")); err != nil {
				return err
			}
			if err := os.Rename(filepath.Join(whole, "lib"), filepath.Join(dir, "lib")); err != nil {
				return err
			}
			// These drivers are for hardware that the guest does not have. They are most of the package.
			for _, unused := range []string{"sound", "drivers/gpu", "drivers/media", "drivers/net/wireless",
				"drivers/iio", "drivers/staging"} {
				if err := os.RemoveAll(filepath.Join(dir, "lib/modules", version, "kernel", unused)); err != nil {
					return err
				}
			}
			if err := run(ctx, "/", nil, "depmod", "-b", dir, version); err != nil {
				return err
			}
			return os.RemoveAll(whole)
		}}
}

// kernelVersion returns the version of the kernel in a kernel part's directory.
func kernelVersion(dir string) (string, error) {
	found, err := filepath.Glob(filepath.Join(dir, "lib/modules/*"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("%s has modules of %d kernels, want 1: remove the directory, it is built anew", dir, len(found))
	}
	return filepath.Base(found[0]), nil
}

// decompress extracts the actual kernel, an ELF file, from a bzImage. QEMU can start the ELF file directly (PVH). This
// saves three seconds of each boot, which an emulated CPU needs to decompress it.
func decompress(ctx context.Context, bzImage, vmlinux string) error {
	image, err := os.ReadFile(bzImage)
	if err != nil {
		return err
	}
	payload, err := payload(image)
	if err != nil {
		return fmt.Errorf("read %s: %w", bzImage, err)
	}
	packed := vmlinux + ".xz"
	if err := os.WriteFile(packed, payload, 0o644); err != nil {
		return err
	}
	return run(ctx, "/", nil, "xz", "--decompress", packed)
}

// payload returns the xz stream in a bzImage. The setup header contains its position (Documentation/arch/x86/boot.rst
// in Linux): setup_sects at 0x1f1, the magic "HdrS" at 0x202, and payload_offset and payload_length at 0x248. The last
// four bytes of the payload are the size of the decompressed data.
func payload(image []byte) ([]byte, error) {
	if len(image) < 0x250 || string(image[0x202:0x206]) != "HdrS" {
		return nil, errors.New("no bzImage: it has no setup header")
	}
	protected := (int(image[0x1f1]) + 1) * 512
	begin := protected + int(binary.LittleEndian.Uint32(image[0x248:]))
	end := begin + int(binary.LittleEndian.Uint32(image[0x24c:])) - 4
	if begin > end || end > len(image) || !bytes.HasPrefix(image[begin:], []byte("\xfd7zXZ\x00")) {
		return nil, errors.New("its payload is not packed with xz, as Debian 12's is")
	}
	return image[begin:end], nil
}
