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

// hostPackages are the Debian packages that the host must have: to run the
// node, to build its parts, and, since the guest sees the host's files, to be
// used in the guest.
var hostPackages = []string{
	"qemu-system-x86", "busybox-static", "kmod", "e2fsprogs", // boot
	"gcc", "libc6-dev", "libseccomp-dev", "pkg-config", "xz-utils", // build
	"rdma-core", "ibverbs-utils", "ibverbs-providers", "libibverbs-dev", "perftest", "iproute2", "crun", "iptables", "util-linux", // use
}

// installPackages installs what is missing of hostPackages.
func installPackages(ctx context.Context, log io.Writer) error {
	missing, err := missingPackages(ctx)
	if err != nil || len(missing) == 0 {
		return err
	}
	names := strings.Join(missing, " ")
	if os.Geteuid() != 0 {
		return fmt.Errorf("the node needs the Debian packages %s: run this once as root, or `apt-get install --no-install-recommends %s`", names, names)
	}
	cache, err := cacheFolder()
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
	fmt.Fprintf(log, "rdma-node: installing Debian packages: %s\n", strings.Join(missing, " "))
	install := append([]string{"install", "-y", "-q", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"}, missing...)
	return withFreshLists(ctx, log, func() error {
		return run(ctx, "/", []string{"DEBIAN_FRONTEND=noninteractive"}, "apt-get", install...)
	})
}

// missingPackages returns those of hostPackages that dpkg does not count as installed.
func missingPackages(ctx context.Context) ([]string, error) {
	installed := map[string]bool{}
	args := append([]string{"-W", "-f", "${binary:Package} ${db:Status-Status}\n"}, hostPackages...)
	// dpkg-query exits with 1 where it does not know one of them; what it knows it prints.
	text, err := output(ctx, "/", nil, "sh", append([]string{"-c", `dpkg-query "$@" 2>/dev/null || :`, "sh"}, args...)...)
	if err != nil {
		return nil, fmt.Errorf("the node's parts come from Debian: %w", err)
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

// withFreshLists tries what needs Debian's mirror, and once more with fresh
// package lists: a host's lists are often missing, or name versions that the
// mirror no longer has. Fetching them may fail for a source that we do not need,
// so only the second try decides.
func withFreshLists(ctx context.Context, log io.Writer, try func() error) error {
	if try() == nil {
		return nil
	}
	fmt.Fprintln(log, "rdma-node: fetching Debian's package lists")
	_ = run(ctx, "/", nil, "apt-get", "update", "-q")
	if err := try(); err != nil {
		return fmt.Errorf("the Debian mirror did not serve what the node needs, try again later: %w", err)
	}
	return nil
}

// unpack fetches a Debian package and unpacks it into a folder; nothing is
// installed on the host.
func unpack(ctx context.Context, name, folder string) error {
	download, err := os.MkdirTemp("", "rdma-node-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(download) }()
	// apt drops root's rights to fetch: its user has to reach the folder.
	if err := os.Chmod(download, 0o777); err != nil {
		return err
	}
	err = withFreshLists(ctx, io.Discard, func() error {
		return run(ctx, download, nil, "apt-get", "download", "-q", name)
	})
	if err != nil {
		return err
	}
	archives, err := filepath.Glob(filepath.Join(download, "*.deb"))
	if err != nil || len(archives) != 1 {
		return fmt.Errorf("apt-get download %s left %d archives, want 1", name, len(archives))
	}
	return run(ctx, "/", nil, "dpkg-deb", "-x", archives[0], folder)
}
