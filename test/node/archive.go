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

// archive is where packages come from. The zero value is what the host's own lists name.
type archive struct {
	// directory holds lists of our own, of a suite of Debian's; "" is the host's.
	dir, suite string
}

// debian12 is where the node's own packages come from, whatever the host is: the kernel that has soft-RoCE, and
// programs of known versions. A host that is Debian 12 has lists of it already, and a mirror that its administrator has
// chosen.
func debian12(release, cache string) archive {
	lines := strings.Split(strings.ReplaceAll(release, `"`, ""), "\n")
	if slices.Contains(lines, "ID=debian") && slices.Contains(lines, "VERSION_ID=12") {
		return archive{}
	}
	return archive{dir: filepath.Join(cache, "debian-12"), suite: "bookworm"}
}

// debianBackports is where the sources of a new kernel come from.
func debianBackports(cache string) archive {
	return archive{dir: filepath.Join(cache, "debian-backports"), suite: "trixie-backports"}
}

// debian13 is where programs come from that Debian 12 has older ones of.
func debian13(cache string) archive {
	return archive{dir: filepath.Join(cache, "debian-13"), suite: "trixie"}
}

// sources is what our own lists are made from. Ubuntu has the keyring in a package of the name that it has on Debian.
const sources = "deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] " +
	"http://deb.debian.org/debian %s main\n"

// prepare makes the directory, without lists.
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

// apt runs one of apt's programs on the archive. Of the host's configuration, the part about how to reach a mirror
// stays in force, such as a proxy.
func (a archive) apt(ctx context.Context, dir, program string, args ...string) (string, error) {
	if a.dir != "" {
		args = append([]string{
			"-o", "Dir::Etc::SourceList=" + filepath.Join(a.dir, "sources.list"), "-o", "Dir::Etc::SourceParts=/dev/null",
			"-o", "Dir::State=" + filepath.Join(a.dir, "state"), "-o", "Dir::State::Status=" +
				filepath.Join(a.dir, "status"),
			"-o", "Dir::Cache=" + filepath.Join(a.dir, "cache"),
			"-o", "APT::Architecture=amd64", "-o", "APT::Architectures=amd64",
			"-o", "APT::Sandbox::User=root", // apt's own user cannot reach root's cache
		}, args...)
	}
	return output(ctx, dir, nil, program, args...)
}

// withFreshLists tries what needs the archive, and once more with fresh package
// lists: a host's lists are often missing, or name versions that the mirror no
// longer has. Fetching them may fail for a source that we do not need, so only
// the second try decides.
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

// dependency returns the package that a meta package stands for.
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

// tree unpacks packages, with all that they depend on, into a directory where their programs run by chroot. It is for
// an archive that has lists of its own.
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

// unpack fetches packages and unpacks them into a directory; nothing is installed
// on the host.
func (a archive) unpack(ctx context.Context, dir string, names ...string) error {
	download, err := os.MkdirTemp("", "rdma-node-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(download) }()
	// apt drops root's rights to fetch: its user has to reach the directory.
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
