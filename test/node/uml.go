// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// umlArguments returns the program and arguments of the user-mode kernel (User Mode Linux), which runs as a program of
// the host. It needs no KVM, and the guest's programs run directly on the host's CPU. It writes to scratch. It always
// has one CPU: only one thread of the kernel's process runs at a time, so with a second CPU the kernel would spin until
// it can run the other.
func umlArguments(parts PartSet, options Options, scratch string) (program string, args []string, err error) {
	kernel, err := filepath.EvalSymlinks(filepath.Join(parts.dir, "uml"))
	if err != nil {
		return "", nil, fmt.Errorf("the kernel for UML is not built: run rdma-node --prepare --parts test: %w", err)
	}
	args = []string{
		"seccomp=on", fmt.Sprintf("mem=%dM", options.Memory), "ncpus=1",
		"initrd=" + filepath.Join(parts.dir, "initramfs", "initramfs"),
		"ubd0=" + filepath.Join(scratch, "disk") + "," + filepath.Join(parts.dir, "disk", "disk.img"),
		"uml_dir=" + scratch, "con=null", "con0=null,fd:1", "ssl=null", "ssl0=fd:3", "console=tty0",
	}
	if options.cable != nil {
		args = append(args, "vec0:transport=fd,fd=4,mac="+options.cable.mac())
	}
	return filepath.Join(kernel, "linux"), append(args, kernelArguments(parts, kernel, options)...), nil
}

// raiseLimits raises the limits of this process's children to what a UML guest needs from the host: an open file for
// each file and directory that is open in the guest, and a mapping for each run of pages of the guest's largest
// process. It needs root.
func raiseLimits() error {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return err
	}
	files.Cur = files.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return err
	}
	const setting, enough = "/proc/sys/vm/max_map_count", 1 << 18
	text, err := os.ReadFile(setting)
	if err != nil {
		return err
	}
	if now, _ := strconv.Atoi(strings.TrimSpace(string(text))); now < enough {
		// If this fails, only a large process of the guest fails.
		_ = os.WriteFile(setting, []byte(strconv.Itoa(enough)), 0o644)
	}
	return nil
}

// uml returns the part that contains the user-mode kernel, with soft-RoCE. Debian's own user-mode kernel has no
// InfiniBand, so this one is built from Debian's sources. The version is fixed to one series, because the names of
// options can change in another one. When Debian's archive no longer has the series, choose a newer one.
func (r recipeBook) uml() part {
	const source = "linux-source-7.2"
	// This takes a quarter less time than -O2, without which arena.c does not compile.
	quick := []string{"KCFLAGS=-O1 -w", "CFLAGS_arena.o=-O2"}
	config := embedded("guest/uml.config")[0]
	return part{name: "uml", recipe: append(quick, source, config, r.host), cost: "5 minutes on two cores",
		build: func(ctx context.Context, dir string) error {
			if err := debianBackports(r.cache).unpack(ctx, dir, source); err != nil {
				return err
			}
			if err := run(ctx, dir, nil, "tar", "xf", filepath.Join("usr", "src", source+".tar.xz")); err != nil {
				return err
			}
			tree := filepath.Join(dir, source)
			options := filepath.Join(dir, "options")
			if err := os.WriteFile(options, []byte(config), 0o644); err != nil {
				return err
			}
			jobs := fmt.Sprintf("-j%d", runtime.NumCPU()+1)
			if err := run(ctx, tree, []string{"KCONFIG_ALLCONFIG=" + options}, "make", "ARCH=um", "allnoconfig"); err != nil {
				return err
			}
			if err := missingOptions(config, filepath.Join(tree, ".config")); err != nil {
				return err
			}
			for _, target := range [][]string{{jobs, "linux", "modules"}, {"modules_install", "INSTALL_MOD_PATH=" + dir}} {
				if err := run(ctx, tree, nil, "make", slices.Concat([]string{"ARCH=um"}, quick, target)...); err != nil {
					return err
				}
			}
			if err := os.Rename(filepath.Join(tree, "linux"), filepath.Join(dir, "linux")); err != nil {
				return err
			}
			for _, rest := range []string{tree, filepath.Join(dir, "usr"), options} {
				if err := os.RemoveAll(rest); err != nil {
					return err
				}
			}
			return nil
		}}
}

// missingOptions returns an error that names the requested options that a kernel's configuration lacks.
func missingOptions(asked, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var missing []string
	for line := range strings.Lines(asked) {
		if strings.HasPrefix(line, "CONFIG_") && !strings.Contains("\n"+string(text), "\n"+line) {
			missing = append(missing, strings.TrimSpace(line))
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("this kernel's sources do not take %s: see its Kconfig", strings.Join(missing, ", "))
	}
	return nil
}
