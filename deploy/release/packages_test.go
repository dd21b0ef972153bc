// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"

	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// checkRPM checks directories in the header of an rpm, which lists those that something of the package is in: its own
// ones are in /etc and /usr/share/doc, and go with it. Distributions with rpm have zsh's completions in another
// directory than Debian.
func checkRPM(t *testing.T, file string) {
	t.Helper()
	text := scratch.Read(t, file)
	for dir, want := range map[string]bool{
		"/etc/": true, "/usr/share/doc/": true, "/usr/share/zsh/site-functions/": true,
		"/usr/share/zsh/vendor-completions/": false,
	} {
		if strings.Contains(text, "\x00"+dir+"\x00") != want {
			t.Errorf("whether %s has something of %s: %v, want %v", dir, filepath.Base(file), !want, want)
		}
	}
}

// TestWritePackages_signed: rpm itself accepts the rpm's signature by the key that the release publishes, and the deb's is
// over its three members.
func TestWritePackages_signed(t *testing.T) {
	entity, key, _ := signingKey(t)
	r := releaseOf(t, smallProgram(t))
	r.key = key
	if err := r.writePackages(); err != nil {
		t.Fatal(err)
	}
	run := func(name string, args ...string) string {
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			t.Errorf("%s %q: %v\n%s", name, args, err, out)
		}
		return string(out)
	}
	database := filepath.Join(scratch.Dir(t), "rpm")
	rpm := filepath.Join(r.output, "rdma-spec-1.2.3-1.x86_64.rpm")
	published := filepath.Join(r.output, "rdma-spec.asc")
	if text, err := os.ReadFile(published); err != nil || !bytes.HasPrefix(text, []byte("-----BEGIN PGP PUBLIC KEY BLOCK-----\n")) ||
		bytes.Contains(text, []byte("PRIVATE")) {
		t.Errorf("the public key: %v\n%s", err, text)
	}
	run("rpm", "--dbpath", database, "--import", published)
	if said := run("rpm", "--dbpath", database, "-Kv", rpm); !strings.Contains(said, "Signature, key ID") || strings.Contains(said, "NOKEY") {
		t.Errorf("rpm says of the signature:\n%s", said)
	}
	deb := filepath.Join(r.output, "rdma-spec_1.2.3-1_amd64.deb")
	members := strings.Fields(run("ar", "t", deb))
	if want := []string{"debian-binary", "control.tar.gz", "data.tar.zst", "_gpgorigin"}; !slices.Equal(members, want) {
		t.Fatalf("the deb has %q, want %q", members, want)
	}
	var signed bytes.Buffer
	for _, member := range members[:3] {
		signed.WriteString(run("ar", "p", deb, member))
	}
	signature, err := openpgp.CheckArmoredDetachedSignature(openpgp.EntityList{entity}, &signed,
		strings.NewReader(run("ar", "p", deb, "_gpgorigin")), nil)
	if err != nil || signature.PrimaryKey.KeyId != entity.PrimaryKey.KeyId {
		t.Errorf("the deb's signature: %v", err)
	}
}

// signingKey makes an OpenPGP key, and writes its private and its public part into files.
func signingKey(t *testing.T) (entity *openpgp.Entity, private, public string) {
	t.Helper()
	entity, err := openpgp.NewEntity("rdma-spec", "", "test@example.com", nil)
	must.Succeed(t, err)
	dir := scratch.Dir(t)
	write := func(name, kind string, serialize func(io.Writer) error) string {
		var armored bytes.Buffer
		w, err := armor.Encode(&armored, kind, nil)
		must.Succeed(t, err)
		must.Succeed(t, serialize(w), w.Close())
		file := filepath.Join(dir, name)
		scratch.File(t, file, armored.String()+"\n", 0o600)
		return file
	}
	private = write("private.asc", openpgp.PrivateKeyType, func(w io.Writer) error { return entity.SerializePrivate(w, nil) })
	public = write("public.asc", openpgp.PublicKeyType, entity.Serialize)
	return entity, private, public
}

// checkDeb checks a deb as dpkg reads it: what it has, and that its units are for the paths that it installs to.
func checkDeb(t *testing.T, file string) {
	t.Helper()
	dir := scratch.Dir(t)
	commands := [][]string{{"dpkg-deb", "-R", file, dir}}
	for _, script := range []string{"postinst", "prerm", "postrm"} {
		commands = append(commands, []string{"sh", "-n", filepath.Join(dir, "DEBIAN", script)})
	}
	for _, command := range commands {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", command, err, out)
		}
	}
	for path, has := range map[string]string{
		"DEBIAN/conffiles":                                  "/etc/rdma-spec/config.yaml\n/etc/rdma-spec/doctor.yaml\n",
		"DEBIAN/control":                                    "Version: 1.2.3-1\n",
		"etc/rdma-spec/config.yaml":                         "rdma-spec config show",
		"etc/rdma-spec/doctor.yaml":                         "\nignore: []\n",
		"usr/lib/systemd/system/nri-rdma.service":           "ExecStart=/usr/bin/nri-rdma\n",
		"usr/lib/systemd/system/nri-rdma-validator.service": "ExecPaths=/usr/bin/nri-rdma\n",
		"usr/lib/systemd/system/rdma-spec-cdi.service":      "--hook /usr/bin/rdma-hook\n",
		"usr/lib/systemd/system/rdma-spec-doctor.service":   "ExecStart=/usr/bin/rdma-spec doctor",
		"usr/share/bash-completion/completions/rdma-spec":   "rdma-spec",
		"usr/share/doc/rdma-spec/nri-rdma-http.conf":        "/usr/bin/nri-rdma --http",
		"usr/share/doc/rdma-spec/copyright":                 "Apache License",
	} {
		text := scratch.Read(t, filepath.Join(dir, path))
		if !strings.Contains(text, has) {
			t.Errorf("%s does not have %q", path, has)
		}
		if strings.Contains(text, "/usr/local/bin/") {
			t.Errorf("%s names the path of an installation by hand", path)
		}
	}
	config := filepath.Join(dir, "etc/rdma-spec/config.yaml")
	out, err := exec.Command(filepath.Join(tree(t), "bin/amd64/rdma-spec"), "config", "check", config).CombinedOutput()
	if err != nil {
		t.Errorf("the packaged configuration: %v\n%s", err, out)
	}
	for page, want := range map[string][]string{
		"man8/nri-rdma.8.gz":                {`.TH "NRI-RDMA" "8" "Nov 2023"`, "--http"},
		"man1/rdma-spec.1.gz":               {"rdma-spec-configure(1)", "rdma-spec-explain(1)"},
		"man1/rdma-spec-configure-nri.1.gz": {"--dry-run"},
	} {
		out, err := exec.Command("gzip", "-dc", filepath.Join(dir, "usr/share/man", page)).Output()
		for _, text := range want {
			if err != nil || !strings.Contains(string(out), text) {
				t.Errorf("%s does not have %q: %v", page, text, err)
			}
		}
	}
}
