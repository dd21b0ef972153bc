// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// hostPackages are the packages that the host must have, by their names in Debian and Ubuntu: to run the node, to build
// its parts, and, since the guest sees the host's files, to use them in the guest.
var hostPackages = []string{
	"debian-archive-keyring",                                 // to fetch packages
	"qemu-system-x86", "busybox-static", "kmod", "e2fsprogs", // to boot the node
	"gcc", "libc6-dev", "libseccomp-dev", "pkg-config", "xz-utils", "make", "bc", "bison", "flex", // to build parts
	// To use in the guest.
	"rdma-core", "ibverbs-utils", "ibverbs-providers", "libibverbs-dev", "perftest", "libfabric-bin", "iproute2", "crun",
	"iptables", "util-linux", "apparmor", "ansible-core", "pci.ids",
	"conmon", "skopeo", // for CRI-O
}

// installPackages installs those of hostPackages that are missing.
func installPackages(ctx context.Context, log io.Writer) error {
	missing, err := missingPackages(ctx)
	if err != nil || len(missing) == 0 {
		return err
	}
	names := strings.Join(missing, " ")
	if os.Geteuid() != 0 {
		return fmt.Errorf("the node needs the packages %s: run this once as root, or `apt-get install "+
			"--no-install-recommends %s`", names, names)
	}
	cache, err := cacheDir()
	if err != nil {
		return err
	}
	unlock, err := lock(ctx, filepath.Join(cache, "packages.lock"), log)
	if err != nil {
		return err
	}
	defer unlock()
	if missing, err = missingPackages(ctx); err != nil || len(missing) == 0 {
		return err
	}
	fmt.Fprintf(log, "rdma-node: installing packages: %s\n", strings.Join(missing, " "))
	install := append([]string{"install", "-y", "-q", "--no-install-recommends", "-o",
		"DPkg::Lock::Timeout=300"}, missing...)
	return archive{}.withFreshLists(ctx, log, func() error {
		return run(ctx, "/", []string{"DEBIAN_FRONTEND=noninteractive"}, "apt-get", install...)
	})
}

// missingPackages returns those of hostPackages that are not installed according to dpkg.
func missingPackages(ctx context.Context) ([]string, error) {
	installed := map[string]bool{}
	args := append([]string{"-W", "-f", "${binary:Package} ${db:Status-Status}\n"}, hostPackages...)
	// dpkg-query exits with 1 if it does not know one of the packages, but prints those that it knows.
	text, err := output(ctx, "/", nil, "sh", append([]string{"-c", `dpkg-query "$@" 2>/dev/null || :`, "sh"}, args...)...)
	if err != nil {
		return nil, fmt.Errorf("the node wants a Debian or an Ubuntu as its host: %w", err)
	}
	for _, line := range strings.Split(text, "\n") {
		if name, ok := strings.CutSuffix(line, " installed"); ok {
			name, _, _ = strings.Cut(name, ":") // libc6-dev:amd64
			installed[name] = true
		}
	}
	var missing []string
	for _, name := range hostPackages {
		if !installed[name] {
			missing = append(missing, name)
		}
	}
	return missing, nil
}
