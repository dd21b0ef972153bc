// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package packages makes deb and rpm packages, with nfpm.
package packages

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers the format
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // registers the format

	"github.com/rdma-spec/rdma-spec/deploy/release/internal/bundle"
)

// Formats are the kinds of packages.
var Formats = []string{"deb", "rpm"}

// Scripts is the folder in the repository with the scripts that package managers run.
const Scripts = "deploy/packages"

// Options are what a package is made of.
type Options struct {
	Root    string // of the repository
	Arch    string // as Go names it
	Version string // semantic, without v
	Date    time.Time
	Files   []bundle.File // named by their paths on the node, without the first slash
	Config  []bundle.File // the same; an upgrade keeps what an administrator has changed
}

// Write writes a package of a format to a folder, and returns its name.
func Write(o Options, format, folder string) (string, error) {
	work, err := os.MkdirTemp("", "package-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(work) }() // in the temporary folder: nothing is lost
	contents, err := contents(o, work)
	if err != nil {
		return "", err
	}
	script := func(name string) string { return filepath.Join(o.Root, Scripts, name+".sh") }
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: "rdma-spec", Arch: o.Arch, Platform: "linux", Version: o.Version, VersionSchema: "semver", Release: "1",
		Section: "admin", Priority: "optional",
		Maintainer: "The rdma-spec Authors <rdma-spec@users.noreply.github.com>", Vendor: "The rdma-spec Authors",
		Homepage:    "https://github.com/rdma-spec/rdma-spec",
		License:     "Apache-2.0",
		Description: "Gives RDMA containers memlock, IPC_LOCK and devices, and no other containers",
		MTime:       o.Date, DisableGlobbing: true,
		Overridables: nfpm.Overridables{
			Contents: contents,
			Scripts: nfpm.Scripts{PostInstall: script("postinstall"), PreRemove: script("preremove"),
				PostRemove: script("postremove")},
			Depends: []string{"systemd"},
			RPM:     nfpm.RPM{BuildHost: "localhost", Compression: "zstd"},
			Deb:     nfpm.Deb{Compression: "zstd"},
		},
	})
	packager, err := nfpm.Get(format)
	if err != nil {
		return "", err
	}
	if err := info.Validate(); err != nil {
		return "", err
	}
	// A pre-release has a tilde, so that it sorts before the release. Forges rename files with a tilde, and the checksums
	// would not fit.
	name := strings.ReplaceAll(packager.ConventionalFileName(info), "~", "-")
	out, err := os.Create(filepath.Join(folder, name))
	if err != nil {
		return "", err
	}
	if err := packager.Package(info, out); err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return name, out.Close()
}

// contents writes files to a folder, where nfpm reads them.
func contents(o Options, work string) (all files.Contents, err error) {
	add := func(f bundle.File, kind string) error {
		source := filepath.Join(work, fmt.Sprint(len(all)))
		all = append(all, &files.Content{
			Source: source, Destination: "/" + f.Name, Type: kind,
			FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: fs.FileMode(f.Mode), MTime: o.Date},
		})
		return os.WriteFile(source, f.Content, 0o644)
	}
	for _, f := range o.Files {
		if err := add(f, files.TypeFile); err != nil {
			return nil, err
		}
	}
	for _, f := range o.Config {
		if err := add(f, files.TypeConfigNoReplace); err != nil {
			return nil, err
		}
	}
	return all, nil
}
