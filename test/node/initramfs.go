// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// busybox is the program that the package busybox-static installs on the host.
const busybox = "/bin/busybox"

// kernelModules are the modules that the guest loads at boot, after their dependencies. They include two crc32 modules
// that are no dependencies, because they are found by name at run time: without crc32_generic, `rdma link add` fails.
// The guest loads all other modules on demand.
var kernelModules = strings.Fields(`virtio_pci virtio_console 9pnet_virtio 9p overlay
	virtio_net virtio_blk ext4 crc32c_generic crc32_generic
	rdma_rxe rdma_ucm ib_uverbs ib_umad dummy veth bridge`)

// initramfs returns the part that contains the guest's first file system: busybox, the modules, and the program that
// starts the node.
func (r recipeBook) initramfs(kernel, agent part) part {
	scripts := embedded("guest/init", "guest/setup")
	recipe := append([]string{"1", kernel.dir(r.cache), agent.dir(r.cache)}, append(scripts, kernelModules...)...)
	return part{name: "initramfs", recipe: recipe, cost: "a second",
		build: func(ctx context.Context, dir string) error {
			var image cpio
			for _, name := range []string{"bin", "proc", "sys", "dev", "host", "layer", "root", "modules", "node"} {
				image.dir(name)
			}
			image.file("init", 0o755, []byte(scripts[0]))
			image.file("node/setup", 0o755, []byte(scripts[1]))
			if err := image.copy("bin/busybox", 0o755, busybox); err != nil {
				return err
			}
			if err := image.copy("node/agent", 0o755, filepath.Join(agent.dir(r.cache), "agent")); err != nil {
				return err
			}
			modules, err := loadOrder(ctx, kernel.dir(r.cache))
			if err != nil {
				return err
			}
			var list strings.Builder
			for _, path := range modules {
				if err := image.copy("modules/"+filepath.Base(path), 0o644, path); err != nil {
					return err
				}
				fmt.Fprintln(&list, filepath.Base(path))
			}
			image.file("modules/list", 0o644, []byte(list.String()))
			return os.WriteFile(filepath.Join(dir, "initramfs"), image.end(), 0o644)
		}}
}

// loadOrder returns the files of kernelModules and of their dependencies, each once, in the order in which they must be
// loaded.
func loadOrder(ctx context.Context, kernel string) ([]string, error) {
	version, err := kernelVersion(kernel)
	if err != nil {
		return nil, err
	}
	var paths []string
	seen := map[string]bool{}
	for _, module := range kernelModules {
		text, err := output(ctx, "/", nil, "modprobe", "-d", kernel, "-S", version, "--show-depends", module)
		if err != nil {
			return nil, err
		}
		for _, line := range strings.Split(text, "\n") { // "insmod PATH [options]", "builtin NAME"
			words := strings.Fields(line)
			if len(words) >= 2 && words[0] == "insmod" && !seen[words[1]] {
				seen[words[1]] = true
				paths = append(paths, words[1])
			}
		}
	}
	return paths, nil
}

// cpio is an archive in the format that the kernel unpacks ("newc").
type cpio struct {
	bytes.Buffer
	inode int
}

func (c *cpio) dir(name string) { c.entry(name, 0o040755, nil) }

func (c *cpio) file(name string, mode uint32, content []byte) { c.entry(name, 0o100000|mode, content) }

func (c *cpio) copy(name string, mode uint32, from string) error {
	content, err := os.ReadFile(from)
	if err == nil {
		c.file(name, mode, content)
	}
	return err
}

// end closes the archive and returns it.
func (c *cpio) end() []byte {
	c.entry("TRAILER!!!", 0, nil)
	return c.Bytes()
}

// entry writes a header of thirteen hexadecimal fields, the name, and the content. The name and the content are padded
// to four bytes.
func (c *cpio) entry(name string, mode uint32, content []byte) {
	c.inode++
	c.WriteString("070701")
	for _, field := range []int{c.inode, int(mode), 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0} {
		fmt.Fprintf(c, "%08x", field)
	}
	c.WriteString(name)
	c.WriteByte(0)
	c.pad()
	c.Write(content)
	c.pad()
}

func (c *cpio) pad() {
	for c.Len()%4 != 0 {
		c.WriteByte(0)
	}
}
