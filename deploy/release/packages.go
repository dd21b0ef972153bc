// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers the format
	_ "github.com/goreleaser/nfpm/v2/rpm" // registers the format
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/rdma-spec/rdma-spec/deploy/release/internal/bundle"
)

// writePackages writes a deb and an rpm package for each architecture, as deploy/packages/nfpm.yaml defines.
func (r *release) writePackages() error {
	work, err := os.MkdirTemp("", "package-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }() // only temporary files
	if err := r.stage(work); err != nil {
		return err
	}
	for _, arch := range architectures {
		for _, f := range r.programs[arch.name] {
			if err := r.put(filepath.Join(work, "bin", f.Name), f.Content); err != nil {
				return err
			}
		}
		for _, format := range []string{"deb", "rpm"} {
			if err := r.writePackage(format, map[string]string{
				"ARCH": arch.name, "VERSION": r.version, "ROOT": r.root, "FILES": work,
			}); err != nil {
				return fmt.Errorf("%s for %s: %w", format, arch.name, err)
			}
		}
	}
	if r.key == "" {
		return nil
	}
	return r.writePublicKey()
}

// writePublicKey writes the public part of the key that signs the packages, so that users can verify the packages.
func (r *release) writePublicKey() error {
	private, err := os.ReadFile(r.key)
	if err != nil {
		return err
	}
	keys, err := openpgp.ReadArmoredKeyRing(bytes.NewReader(private))
	if err != nil {
		return fmt.Errorf("%s: %w", r.key, err)
	}
	var public bytes.Buffer
	w, err := armor.Encode(&public, openpgp.PublicKeyType, nil)
	if err != nil {
		return err
	}
	for _, key := range keys {
		err = errors.Join(err, key.Serialize(w))
	}
	if err := errors.Join(err, w.Close()); err != nil {
		return err
	}
	public.WriteByte('\n')
	return r.write("rdma-spec.asc", public.Bytes())
}

func (r *release) writePackage(format string, variables map[string]string) error {
	config, err := nfpm.ParseFileWithEnvMapping(filepath.Join(r.root, "deploy/packages/nfpm.yaml"),
		func(name string) string { return variables[name] })
	if err != nil {
		return err
	}
	info, err := config.Get(format)
	if err != nil {
		return err
	}
	info = nfpm.WithDefaults(info)
	info.MTime = r.date
	info.Deb.Signature.KeyFile = r.key
	info.RPM.Signature.KeyFile = r.key
	for _, script := range []*string{&info.Scripts.PostInstall, &info.Scripts.PreRemove, &info.Scripts.PostRemove} {
		*script = filepath.Join(r.root, *script)
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	// The version of a pre-release contains a tilde, so that it sorts before the release. GitHub and similar sites rename
	// files with a tilde, and SHA256SUMS would not list the new names.
	var packed bytes.Buffer
	if err := packager.Package(info, &packed); err != nil {
		return err
	}
	return r.write(strings.ReplaceAll(packager.ConventionalFileName(info), "~", "-"), packed.Bytes())
}

// stage writes the generated files that are the same for packages of all architectures to a directory.
func (r *release) stage(dir string) error {
	units, err := bundle.Dir(filepath.Join(r.root, "deploy/systemd"))
	if err != nil {
		return err
	}
	for _, f := range units {
		// The unit files refer to the programs of a manual installation, in /usr/local/bin.
		text := strings.ReplaceAll(string(f.Content), "/usr/local/bin/", "/usr/bin/")
		if err := r.put(filepath.Join(dir, f.Name), []byte(text)); err != nil {
			return err
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		text, err := r.run("rdma-spec", "completion", shell)
		if err != nil {
			return err
		}
		if err := r.put(filepath.Join(dir, "rdma-spec."+shell), text); err != nil {
			return err
		}
	}
	manual := filepath.Join(dir, "man")
	if err := os.Mkdir(manual, 0o755); err != nil {
		return err
	}
	if _, err := r.run("rdma-spec", "man", manual); err != nil {
		return err
	}
	pages, err := bundle.Dir(manual)
	if err != nil {
		return err
	}
	help, err := r.run("nri-rdma", "--help")
	if err != nil {
		return err
	}
	var page bytes.Buffer
	err = doc.GenMan(&cobra.Command{
		Use: "nri-rdma", Short: "NRI plugin that grants memlock, IPC_LOCK, and devices to RDMA containers",
		DisableAutoGenTag: true, Long: "```\n" + string(help) + "```\n", Run: func(*cobra.Command, []string) {},
	}, &doc.GenManHeader{Section: "8", Source: "rdma-spec " + r.tag, Date: &r.date}, &page)
	if err != nil {
		return err
	}
	for _, f := range append(pages, bundle.File{Name: "nri-rdma.8", Content: page.Bytes()}) {
		text, err := bundle.Gzip(f.Content)
		if err != nil {
			return err
		}
		if err := r.put(filepath.Join(dir, f.Name+".gz"), text); err != nil {
			return err
		}
	}
	return nil
}

// put writes a file with the release's date as its modification time.
func (r *release) put(file string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(file, content, 0o644); err != nil {
		return err
	}
	return os.Chtimes(file, r.date, r.date)
}

// run runs one of the release's programs on this machine.
func (r *release) run(command ...string) ([]byte, error) {
	if runtime.GOOS != "linux" {
		return nil, fmt.Errorf("packages contain the output of Linux programs, which do not run on %s: "+
			"create packages on Linux", runtime.GOOS)
	}
	cmd := exec.Command(filepath.Join(r.root, "bin", runtime.GOARCH, command[0]), command[1:]...)
	cmd.Env = append(os.Environ(), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", r.date.Unix()))
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%v: %w\n%s", command, err, out)
	}
	return out, nil
}
