// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goreleaser/nfpm/v2"

	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// expectAPTRepository has apt install the deb by its name, from a repository that is a directory.
func (r *rehearsal) expectAPTRepository(t *testing.T) {
	t.Helper()
	dir := scratch.Dir(t)
	for _, sub := range []string{"state/lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	packages, err := exec.Command("sh", "-c", "cd "+r.output+" && dpkg-scanpackages --multiversion . 2>/dev/null").Output()
	if err != nil {
		t.Fatal(err)
	}
	scratch.File(t, filepath.Join(r.output, "Packages"), string(packages), 0o644)
	scratch.File(t, filepath.Join(dir, "sources.list"), "deb [trusted=yes] file:"+r.output+" ./\n", 0o644)
	apt := []string{"-o", "Dir::Etc::sourcelist=" + filepath.Join(dir, "sources.list"), "-o", "Dir::Etc::sourceparts=-",
		"-o", "Dir::State=" + filepath.Join(dir, "state"), "-o", "Dir::State::status=/var/lib/dpkg/status",
		"-o", "Dir::Cache=" + filepath.Join(dir, "cache"), "-o", "APT::Sandbox::User=root"}
	r.run(t, "", "apt-get", append(apt, "update")...)
	if said := r.run(t, "", "apt-get", append(apt, "--simulate", "install", "rdma-spec")...); !strings.Contains(said,
		"Inst rdma-spec ("+r.version+"-1 ") {
		t.Errorf("of a repository, apt installs\n%s", said)
	}
}

// expectDNFRepository has dnf install the rpm by its name, from a repository that is a directory, and verify its
// signature by the key of the release. dnf refuses the package by another key.
func (r *rehearsal) expectDNFRepository(t *testing.T) {
	t.Helper()
	r.run(t, "", "createrepo_c", "--quiet", r.output)
	dnfRoot(t).addRepository(t, "rdma-spec", r.output, filepath.Join(r.output, "rdma-spec.asc")).install(t, "rdma-spec")

	_, _, another := signingKey(t)
	wrong := dnfRoot(t).addRepository(t, "rdma-spec", r.output, another)
	out, err := wrong.command("rdma-spec").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "GPG") {
		t.Errorf("with the key of another, dnf says: %v\n%s", err, out)
	}
}

// rpmRoot is a directory that dnf installs into. It has its own repositories, and no package.
type rpmRoot string

// dnfRoot makes a root, with a repository that stands for a distribution's: it has a package systemd.
func dnfRoot(t *testing.T) rpmRoot {
	t.Helper()
	root := rpmRoot(scratch.Dir(t))
	distribution := scratch.Dir(t)
	info := nfpm.WithDefaults(&nfpm.Info{Name: "systemd", Arch: "all", Version: "252", Maintainer: "nobody <nobody@example.com>"})
	packager, err := nfpm.Get("rpm")
	must.Succeed(t, err)
	file, err := os.Create(filepath.Join(distribution, "systemd.rpm"))
	must.Succeed(t, err)
	must.Succeed(t, packager.Package(info, file), file.Close())
	out, err := exec.CommandContext(t.Context(), "createrepo_c", "--quiet", distribution).CombinedOutput()
	if err != nil {
		t.Fatalf("createrepo_c: %v\n%s", err, out)
	}
	return root.addRepository(t, "distribution", distribution, "")
}

// addRepository adds a repository that is a directory. dnf verifies its packages by a key, if there is one.
func (r rpmRoot) addRepository(t *testing.T, name, dir, key string) rpmRoot {
	t.Helper()
	verify := "gpgcheck=0\n"
	if key != "" {
		verify = "gpgcheck=1\ngpgkey=file://" + key + "\n"
	}
	text := fmt.Sprintf("[%s]\nname=%[1]s\nbaseurl=file://%s\n%s", name, dir, verify)
	scratch.File(t, filepath.Join(string(r), "repositories", name+".repo"), text, 0o644)
	return r
}

// command is dnf, which installs a package. It runs no script of the package: the root has no shell.
func (r rpmRoot) command(packageName string) *exec.Cmd {
	return exec.Command("dnf", "--installroot", filepath.Join(string(r), "root"), "--releasever=9", "--nodocs", "--assumeyes",
		"--setopt=reposdir="+filepath.Join(string(r), "repositories"), "--setopt=cachedir="+filepath.Join(string(r), "cache"),
		"--setopt=tsflags=noscripts", "install", packageName)
}

// install has dnf install the package of rdma-spec, and expects its programs.
func (r rpmRoot) install(t *testing.T, packageName string) {
	t.Helper()
	out, err := r.command(packageName).CombinedOutput()
	if err != nil {
		t.Errorf("dnf install %s: %v\n%s", packageName, err, out)
	}
	for _, program := range []string{"rdma-spec", "nri-rdma"} {
		if _, err := os.Stat(filepath.Join(string(r), "root/usr/bin", program)); err != nil {
			t.Errorf("dnf has not installed %s:\n%s", program, out)
		}
	}
}
