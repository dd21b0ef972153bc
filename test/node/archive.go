// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// archive is a source of packages. The zero archive uses the host's own package lists.
type archive struct {
	// dir contains package lists of a suite of Debian; "" means the host's lists.
	dir, suite string
}

// debian12 returns the archive of the node's own packages, whatever the host is: the kernel with soft-RoCE, and
// programs of known versions. If the host is Debian 12, this is the host's own archive, so that the administrator's
// choice of a mirror applies.
func debian12(release, cache string) archive {
	lines := strings.Split(strings.ReplaceAll(release, `"`, ""), "\n")
	if slices.Contains(lines, "ID=debian") && slices.Contains(lines, "VERSION_ID=12") {
		return archive{}
	}
	return archive{dir: filepath.Join(cache, "debian-12"), suite: "bookworm"}
}

// debianBackports returns the archive that contains the sources of a new kernel.
func debianBackports(cache string) archive {
	return archive{dir: filepath.Join(cache, "debian-backports"), suite: "trixie-backports"}
}

// debian13 returns the archive for programs that are too old in Debian 12.
func debian13(cache string) archive {
	return archive{dir: filepath.Join(cache, "debian-13"), suite: "trixie"}
}

// sources is the sources.list of this package's own lists. The package with the keyring has the same name in Ubuntu and
// Debian.
const sources = "deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] " +
	"http://deb.debian.org/debian %s main\n"

// prepare creates the directory, without package lists.
func (a archive) prepare() error {
	if a.dir == "" {
		return nil
	}
	for _, dir := range []string{"state/lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(a.dir, dir), 0o755); err != nil {
			return err
		}
	}
	for name, content := range map[string]string{"sources.list": fmt.Sprintf(sources, a.suite), "status": ""} {
		if err := os.WriteFile(filepath.Join(a.dir, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// apt runs one of apt's programs on the archive. The host's configuration of mirrors and proxies still applies.
func (a archive) apt(ctx context.Context, dir, program string, args ...string) (string, error) {
	if a.dir != "" {
		args = append([]string{
			"-o", "Dir::Etc::SourceList=" + filepath.Join(a.dir, "sources.list"), "-o", "Dir::Etc::SourceParts=/dev/null",
			"-o", "Dir::State=" + filepath.Join(a.dir, "state"), "-o", "Dir::State::Status=" +
				filepath.Join(a.dir, "status"),
			"-o", "Dir::Cache=" + filepath.Join(a.dir, "cache"),
			"-o", "APT::Architecture=amd64", "-o", "APT::Architectures=amd64",
			"-o", "APT::Sandbox::User=root", // apt's own user has no access to root's cache
		}, args...)
	}
	return output(ctx, dir, nil, program, args...)
}

// withFreshLists tries a function that needs the archive. If it fails, withFreshLists updates the package lists and
// tries again, because a host's lists are often missing, or name versions that the mirror no longer has. The update may
// fail for a source that is not needed, so its error is ignored.
func (a archive) withFreshLists(ctx context.Context, log io.Writer, try func() error) error {
	if err := a.prepare(); err != nil {
		return err
	}
	if try() == nil {
		return nil
	}
	fmt.Fprintln(log, "rdma-node: fetching Debian's package lists")
	_, _ = a.apt(ctx, "/", "apt-get", "update", "-q")
	if err := try(); err != nil {
		return fmt.Errorf("the Debian mirror did not serve what the node needs, try again later: %w", err)
	}
	return nil
}

// dependency returns the dependency of a metapackage whose name has a prefix.
func (a archive) dependency(ctx context.Context, meta, prefix string) (name string, err error) {
	err = a.withFreshLists(ctx, os.Stderr, func() error {
		text, err := a.apt(ctx, "/", "apt-cache", "depends", meta)
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

// tree unpacks packages and all their dependencies into a directory, in which their programs run with chroot. The
// archive must have its own lists.
func (a archive) tree(ctx context.Context, dir string, names ...string) error {
	var all []string
	err := a.withFreshLists(ctx, io.Discard, func() error {
		all = nil
		text, err := a.apt(ctx, "/", "apt-get", append([]string{"install", "-s", "-q", "--no-install-recommends",
			"base-files"}, names...)...)
		for line := range strings.Lines(text) {
			if words := strings.Fields(line); len(words) > 1 && words[0] == "Inst" {
				all = append(all, words[1])
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	return a.unpack(ctx, dir, all...)
}

// unpack fetches packages and unpacks them into a directory. It installs nothing on the host.
func (a archive) unpack(ctx context.Context, dir string, names ...string) error {
	download, err := os.MkdirTemp("", "rdma-node-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(download) }()
	// apt fetches as an unprivileged user, which needs access to the directory.
	if err := os.Chmod(download, 0o777); err != nil {
		return err
	}
	err = a.withFreshLists(ctx, io.Discard, func() error {
		_, err := a.apt(ctx, download, "apt-get", append([]string{"download", "-q"}, names...)...)
		return err
	})
	if err != nil {
		return err
	}
	archives, err := filepath.Glob(filepath.Join(download, "*.deb"))
	if err != nil || len(archives) != len(names) {
		return fmt.Errorf("apt-get download %s left %d archives, want %d", strings.Join(names, " "), len(archives),
			len(names))
	}
	for _, file := range archives {
		if err := run(ctx, "/", nil, "dpkg-deb", "-x", file, dir); err != nil {
			return err
		}
	}
	return nil
}
