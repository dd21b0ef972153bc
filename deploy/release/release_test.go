// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/match"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/deploy/release/internal/bundle"
	"github.com/rdma-spec/rdma-spec/deploy/release/internal/image"
	"github.com/rdma-spec/rdma-spec/deploy/release/internal/image/imagetest"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

const top = "../.."

// maxUnpacked is what the image of one platform may take, unpacked.
const maxUnpacked = 40 << 20

var built struct {
	once sync.Once
	dir  string
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir) // in the temporary directory: nothing is lost
	}
	os.Exit(code)
}

// tree returns a directory with the repository's content, where bin has the programs of a version as make builds them.
func tree(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		built.dir, built.err = os.MkdirTemp("", "release-test-")
		if built.err == nil {
			built.err = plant(built.dir)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.dir
}

// plant links the repository's directories and builds the programs.
func plant(dir string) error {
	entries, err := os.ReadDir(top)
	if err != nil {
		return err
	}
	from, err := filepath.Abs(top)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == "bin" {
			continue
		}
		if err := os.Symlink(filepath.Join(from, e.Name()), filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	for _, call := range []struct{ env, targets []string }{
		// Of a Mac, go builds programs for it, and of an arm64 one, for that.
		{[]string{"GOOS=darwin", "GOARCH=arm64"}, []string{"amd64", "arm64"}},
		// To build kubectl rdma for each system takes minutes.
		{nil, []string{"sbom", "PLATFORMS=linux/amd64"}},
	} {
		cmd := exec.Command("make", append(call.targets, "--no-print-directory", "-C", dir, "VERSION=v1.2.3")...)
		cmd.Env = append(os.Environ(), call.env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
	}
	for _, file := range []string{"linux_amd64/kubectl-rdma", "windows_arm64/kubectl-rdma.exe"} {
		file = filepath.Join(dir, "bin/kubectl", file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte("a program for "+file), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// makeRelease makes a release of the tree's programs.
func makeRelease(t *testing.T) *release {
	t.Helper()
	r, err := newRelease(tree(t), scratch.Dir(t), "v1.2.3", time.Unix(1_700_000_000, 0))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestExplainAndConfig_crossCompile: what kubectl rdma shares with rdma-spec, explain and config check, builds for the machines
// of authors of pods. What else kubectl rdma has is client-go's.
func TestExplainAndConfig_crossCompile(t *testing.T) {
	for system, machine := range map[string]string{"darwin": "arm64", "windows": "amd64"} {
		cmd := exec.Command("go", "build", "./cmd/internal/explain", "./cmd/internal/config")
		cmd.Dir, cmd.Env = top, append(os.Environ(), "GOOS="+system, "GOARCH="+machine)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("for %s: %v\n%s", system, err, out)
		}
	}
}

func TestImageIsSmall(t *testing.T) {
	for arch, files := range makeRelease(t).programs {
		size := 0
		for _, f := range files {
			size += len(f.Content)
		}
		t.Logf("%s: %.1f MB unpacked", arch, float64(size)/(1<<20))
		if size == 0 || size > maxUnpacked {
			t.Errorf("%s: %d bytes unpacked, want %d at most", arch, size, maxUnpacked)
		}
	}
}

// TestSBOM checks that the bills of materials name every module that is in a program, and its standard library.
func TestSBOM(t *testing.T) {
	r := makeRelease(t)
	for arch, files := range r.programs {
		for _, f := range files {
			text := scratch.Read(t, filepath.Join(r.root, "bin/sbom", f.Name+"_linux_"+arch+".cdx.json"))
			var bill struct {
				BOMFormat  string
				Metadata   struct{ Component struct{ Version string } }
				Components []struct{ Name, Version string }
			}
			if err := json.Unmarshal([]byte(text), &bill); err != nil {
				t.Fatal(err)
			}
			named := map[string]bool{}
			for _, c := range bill.Components {
				named[c.Name+"@"+c.Version] = true
			}
			info, err := buildinfo.Read(bytes.NewReader(f.Content))
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range info.Deps {
				if !named[m.Path+"@"+m.Version] {
					t.Errorf("the bill of %s for %s does not name %s@%s", f.Name, arch, m.Path, m.Version)
				}
			}
			if bill.BOMFormat != "CycloneDX" || bill.Metadata.Component.Version != "v1.2.3" || len(info.Deps) == 0 ||
				!named["std@"+info.GoVersion] {
				t.Errorf("the bill of %s for %s is a %s of version %s, of %d modules, for %s", f.Name, arch, bill.BOMFormat,
					bill.Metadata.Component.Version, len(info.Deps), info.GoVersion)
			}
		}
	}
}

// TestWriteImage_platforms: the image of each architecture has programs for it, although they were built as on a
// Mac; Digests names it. Programs in the wrong directory are refused.
func TestWriteImage_platforms(t *testing.T) {
	r := makeRelease(t)
	if err := r.writeImage(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(r.output, "image")
	digests, err := image.Digests(dir)
	if err != nil {
		t.Fatal(err)
	}
	top, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	indexes, err := partial.FindIndexes(top, match.MediaTypes(string(types.OCIImageIndex)))
	if err != nil || len(indexes) != 1 {
		t.Fatalf("%d indexes: %v", len(indexes), err)
	}
	got := map[string][]elf.Machine{}
	for arch, digest := range digests {
		manifest, err := indexes[0].Image(digest)
		if err != nil {
			t.Fatal(err)
		}
		for name, content := range imagetest.Programs(t, manifest, r.date) {
			program, err := elf.NewFile(strings.NewReader(content))
			if err != nil {
				t.Fatalf("%s: %s: %v", arch, name, err)
			}
			got[arch] = append(got[arch], program.Machine)
		}
	}
	want := map[string][]elf.Machine{"amd64": {elf.EM_X86_64, elf.EM_X86_64}, "arm64": {elf.EM_AARCH64, elf.EM_AARCH64}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("machines of the programs, -want +got:\n%s", diff)
	}

	root := scratch.Dir(t)
	for _, arch := range architectures {
		from := filepath.Join(r.root, "bin/arm64")
		if err := os.CopyFS(filepath.Join(root, "bin", arch.name), os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
	_, err = newRelease(root, scratch.Dir(t), "v1.2.3", time.Unix(0, 0))
	if err == nil || !strings.HasSuffix(err.Error(), "bin/amd64/nri-rdma: the program is for EM_AARCH64, not for EM_X86_64: run make amd64") {
		t.Errorf("programs of another machine: %v", err)
	}
}

// smallProgram returns a Go program that is compressed quickly.
func smallProgram(t *testing.T) []byte {
	t.Helper()
	dir := scratch.Dir(t)
	source, program := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
	scratch.File(t, source, "package main\n\nfunc main() {}\n", 0o644)
	if out, err := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", program,
		source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return []byte(scratch.Read(t, program))
}

// releaseOf is makeRelease with one program in place of all, whose size would take minutes on a busy machine.
func releaseOf(t *testing.T, program []byte) *release {
	t.Helper()
	r := makeRelease(t)
	for _, files := range r.programs {
		for i := range files {
			files[i].Content = program
		}
	}
	return r
}

// TestReleaseIsReproducible checks that the same programs make the same release, and what it has.
func TestReleaseIsReproducible(t *testing.T) {
	var outputs [2][]bundle.File
	var r *release
	program := smallProgram(t)
	for i := range outputs {
		r = releaseOf(t, program)
		if err := r.writeAll(); err != nil {
			t.Fatal(err)
		}
		var err error
		if outputs[i], err = bundle.Dir(r.output); err != nil {
			t.Fatal(err)
		}
	}
	sameFiles(t, outputs[0], outputs[1])
	want := []string{
		"SHA256SUMS", "daemonset.yaml", "image.tar", "kubectl-rdma.yaml",
		"kubectl-rdma_1.2.3_linux_amd64.tar.gz", "kubectl-rdma_1.2.3_windows_arm64.tar.gz",
		"kubectl-rdma_linux_amd64.cdx.json", "nri-rdma-1.2.3.tgz",
		"nri-rdma_linux_amd64.cdx.json", "nri-rdma_linux_arm64.cdx.json", "rdma-hook_linux_amd64.cdx.json",
		"rdma-hook_linux_arm64.cdx.json", "rdma-spec-1.2.3-1.aarch64.rpm",
		"rdma-spec-1.2.3-1.x86_64.rpm",
		"rdma-spec_1.2.3-1_amd64.deb", "rdma-spec_1.2.3-1_arm64.deb", "rdma-spec_1.2.3_linux_amd64.tar.gz",
		"rdma-spec_1.2.3_linux_arm64.tar.gz", "rdma-spec_linux_amd64.cdx.json", "rdma-spec_linux_arm64.cdx.json",
	}
	var got []string
	for _, f := range outputs[0] {
		if !strings.HasPrefix(f.Name, "image/") {
			got = append(got, f.Name)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files, -want +got:\n%s", diff)
	}
	cmd := exec.Command("sha256sum", "--check", "--strict", "SHA256SUMS")
	cmd.Dir = r.output
	if out, err := cmd.CombinedOutput(); err != nil || strings.Count(string(out), ": OK") != len(want)-1 {
		t.Errorf("%v: %v\n%s", cmd.Args, err, out)
	}
	archive := filepath.Join(r.output, "rdma-spec_1.2.3_linux_amd64.tar.gz")
	for _, call := range [][]string{
		{"cat", filepath.Join(r.output, "daemonset.yaml")},
		{"tar", "xzOf", archive, "rdma-spec_1.2.3_linux_amd64/deploy/kustomize/components/validator/daemonset.yaml"},
	} {
		if text, err := exec.Command(call[0], call[1:]...).Output(); err != nil || !strings.Contains(string(text),
			"image: ghcr.io/rdma-spec/rdma-spec:v1.2.3\n") {
			t.Errorf("%v: %v: not for the release's image:\n%s", call, err, text)
		}
	}
	checkDeb(t, filepath.Join(r.output, "rdma-spec_1.2.3-1_amd64.deb"))
	checkRPM(t, filepath.Join(r.output, "rdma-spec-1.2.3-1.x86_64.rpm"))
	checkKrew(t, r)
}

// checkKrew checks that krew finds each archive of kubectl rdma, with its checksum and a program in it.
func checkKrew(t *testing.T, r *release) {
	t.Helper()
	text := scratch.Read(t, filepath.Join(r.output, "kubectl-rdma.yaml"))
	var plugin struct {
		Metadata struct{ Name string }
		Spec     struct {
			Version   string
			Platforms []struct {
				Selector struct{ MatchLabels struct{ OS, Arch string } }
				URI      string
				SHA256   string
				Bin      string
			}
		}
	}
	if err := yaml.Unmarshal([]byte(text), &plugin); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if plugin.Metadata.Name != "rdma" || plugin.Spec.Version != "v1.2.3" || len(plugin.Spec.Platforms) != 2 {
		t.Errorf("kubectl-rdma.yaml:\n%s", text)
	}
	for _, p := range plugin.Spec.Platforms {
		system := p.Selector.MatchLabels.OS + "_" + p.Selector.MatchLabels.Arch
		dir, file := path.Split(p.URI)
		content, err := os.ReadFile(filepath.Join(r.output, file))
		if err != nil || dir != "https://github.com/rdma-spec/rdma-spec/releases/download/v1.2.3/" ||
			fmt.Sprintf("%x", sha256.Sum256(content)) != p.SHA256 || !strings.Contains(file, system) {
			t.Errorf("%v: %+v", err, p)
		}
		said, err := exec.Command("tar", "xzOf", filepath.Join(r.output, file), p.Bin).Output()
		if err != nil || !strings.Contains(string(said), "bin/kubectl/"+system) {
			t.Errorf("%s: %v, %q", file, err, said)
		}
	}
}

// sameFiles checks that two lists of files are the same. go-cmp takes minutes for files of this size.
func sameFiles(t *testing.T, a, b []bundle.File) {
	t.Helper()
	if len(a) == 0 || len(a) != len(b) {
		t.Fatalf("%d and %d files, want the same number and more than none", len(a), len(b))
	}
	for i := range a {
		if a[i].Name != b[i].Name || a[i].Mode != b[i].Mode || !bytes.Equal(a[i].Content, b[i].Content) {
			t.Errorf("%s and %s of the same programs differ", a[i].Name, b[i].Name)
		}
	}
}

// TestProgramsRun runs both programs of both platforms, those of another one under QEMU's user mode.
func TestProgramsRun(t *testing.T) {
	for _, arch := range architectures {
		t.Run(arch.name, func(t *testing.T) {
			var emulator []string
			if arch.name != runtime.GOARCH {
				qemu, err := exec.LookPath("qemu-aarch64")
				if err != nil {
					t.Skip("qemu-aarch64 is not installed: run make deps")
				}
				emulator = []string{qemu}
			}
			for _, call := range [][]string{{"nri-rdma", "--version"}, {"rdma-spec", "version"}} {
				call[0] = filepath.Join(tree(t), "bin", arch.name, call[0])
				call = append(emulator[:len(emulator):len(emulator)], call...)
				out, err := exec.Command(call[0], call[1:]...).CombinedOutput()
				if err != nil || !strings.Contains(string(out), "v1.2.3") {
					t.Errorf("%v: %v\n%s", call, err, out)
				}
			}
		})
	}
}

func TestSemantic(t *testing.T) {
	for tag, want := range map[string]string{
		"v1.2.3": "1.2.3", "v1.2.3-rc.1": "1.2.3-rc.1", "v1.2.3-4-gabcdef0-dirty": "1.2.3-4-gabcdef0-dirty",
		"0123456": "0.0.0-g0123456", "devel": "0.0.0-gdevel", "v1": "0.0.0-gv1",
	} {
		if got := semantic(tag); got != want {
			t.Errorf("semantic(%q) = %q, want %q", tag, got, want)
		}
	}
}
