// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// Where a release is published, and the pages with the commands that install from there.
const (
	publishedImages = "ghcr.io"
	publishedFiles  = "https://github.com/rdma-spec/rdma-spec/releases/download/"
)

var installingPages = []string{"README.md", "docs/index.md", "docs/install.md", "docs/doctor.md", "docs/fail-closed.md",
	"docs/upgrade-and-uninstall.md", "deploy/helm/nri-rdma/README.md"}

// rehearsal is a release that is published on the loopback.
type rehearsal struct {
	*release
	registry, files string // addresses that stand for ghcr.io and for the release's files
	helm            string
	env             []string
}

// TestRehearsal publishes a release as the workflow does, to a registry and a server on the loopback, and installs from
// there with the commands of the pages, in which nothing but the addresses is replaced. Helm renders where it would
// install: TestClusterDaemonSet has a cluster.
func TestRehearsal(t *testing.T) {
	r := rehearse(t)
	r.publish(t)
	ran := map[string]int{}
	for _, page := range installingPages {
		for _, block := range regexp.MustCompile("(?ms)^ *```sh[^\n]*\n(.*?)^ *```$").FindAllStringSubmatch(
			scratch.Read(t, filepath.Join(top, page)), -1) {
			if strings.Contains(block[1], publishedImages) || strings.Contains(block[1], publishedFiles) {
				r.install(t, page, block[1], ran)
			}
		}
	}
	for command, least := range map[string]int{"helm": 5, "kubectl apply": 1, "kubectl krew": 1, "curl": 3, "apt-get": 2, "dnf": 1} {
		if ran[command] < least {
			t.Errorf("%s was run %d times, want %d at least", command, ran[command], least)
		}
	}
	r.expectFiles(t)
	r.expectAPTRepository(t)
	r.expectDNFRepository(t)
}

// rehearse makes a release of the version that the pages name.
func rehearse(t *testing.T) *rehearsal {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	found, _ := filepath.Glob(filepath.Join(cache, "rdma-spec/helm-*/helm")) // the pattern is sound
	if len(found) == 0 {
		t.Skip("Helm is not built: run make prepare-all")
	}
	version := regexp.MustCompile(` --version (\S+) `).FindStringSubmatch(scratch.Read(t, filepath.Join(top, "README.md")))
	if version == nil || !strings.Contains(scratch.Read(t, filepath.Join(top, "CHANGELOG.md")), "\n## v"+version[1]+"\n") {
		t.Fatalf("README.md names the version %q, of which CHANGELOG.md has no section", version)
	}
	r, err := newRelease(tree(t), scratch.Dir(t), "v"+version[1], time.Unix(1_700_000_000, 0))
	if err != nil {
		t.Fatal(err)
	}
	program := smallProgram(t)
	for _, files := range r.programs {
		for i := range files {
			files[i].Content = program
		}
	}
	_, r.key, _ = signingKey(t)
	if err := r.writeAll(); err != nil {
		t.Fatal(err)
	}
	images := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(images.Close)
	files := httptest.NewServer(http.StripPrefix("/"+r.tag+"/", http.FileServer(http.Dir(r.output))))
	t.Cleanup(files.Close)
	home := scratch.Dir(t)
	return &rehearsal{release: r, registry: strings.TrimPrefix(images.URL, "http://"), files: files.URL + "/", helm: found[0],
		env: append(os.Environ(), "HOME="+home, "XDG_CACHE_HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_DATA_HOME="+home)}
}

// publish runs the workflow's two commands that push.
func (r *rehearsal) publish(t *testing.T) {
	t.Helper()
	workflow := scratch.Read(t, filepath.Join(top, ".github/workflows/release.yaml"))
	image := regexp.MustCompile(`bin/releaser push bin/release/image "ghcr\.io/(\S+):\$GITHUB_REF_NAME"`).FindStringSubmatch(workflow)
	charts := regexp.MustCompile(`helm push bin/release/(\S+) oci://ghcr\.io/(\S+) `).FindStringSubmatch(workflow)
	if image == nil || charts == nil {
		t.Fatal("the workflow pushes otherwise")
	}
	push := newPushCommand()
	push.SetArgs([]string{filepath.Join(r.output, "image"), r.registry + "/" + image[1] + ":" + r.tag})
	push.SetOut(io.Discard)
	if err := push.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(filepath.Join(r.output, charts[1]))
	if err != nil || len(found) != 1 {
		t.Fatalf("the release has the charts %q: %v", found, err)
	}
	r.run(t, "", r.helm, "push", found[0], "oci://"+r.registry+"/"+charts[2], "--plain-http")
}

// run runs a program in a directory, and returns what it says.
func (r *rehearsal) run(t *testing.T, dir, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir, cmd.Env = dir, r.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s %q: %v\n%s", program, args, err, out)
	}
	return string(out)
}

// install runs the commands of a block that need what is published, in a directory of their own.
func (r *rehearsal) install(t *testing.T, page, block string, ran map[string]int) {
	t.Helper()
	dir := scratch.Dir(t)
	for line := range strings.Lines(block) {
		line = strings.NewReplacer("oci://"+publishedImages, "oci://"+r.registry, publishedFiles, r.files).Replace(strings.TrimSpace(line))
		words := strings.Fields(line)
		switch {
		case words[0] == "helm" && strings.Contains(line, r.registry):
			t.Logf("%s: %s", page, line)
			r.render(t, strings.NewReplacer(" --reset-then-reuse-values", "", "'", "").Replace(line))
			ran["helm"]++
		case strings.HasPrefix(line, "kubectl apply -f "+r.files):
			t.Logf("%s: %s", page, line)
			r.expectImages(t, strings.ReplaceAll(string(fetch(t, words[3])), publishedImages, r.registry))
			ran["kubectl apply"]++
		case strings.HasPrefix(line, "kubectl krew install --manifest-url "):
			t.Logf("%s: %s", page, line)
			r.krew(t, fetch(t, words[4]))
			ran["kubectl krew"]++
		case words[0] == "curl":
			t.Logf("%s: %s", page, line)
			r.run(t, dir, "sh", "-c", line)
			ran["curl"]++
		case words[0] == "apt-get":
			t.Logf("%s: %s", page, line)
			if said := r.run(t, dir, words[0], append([]string{"--simulate"}, words[1:]...)...); !strings.Contains(said,
				"Inst rdma-spec ("+r.version+"-1 ") {
				t.Errorf("%s: apt installs\n%s", line, said)
			}
			ran["apt-get"]++
		case words[0] == "dnf":
			t.Logf("%s: %s", page, line)
			dnfRoot(t).install(t, words[2])
			ran["dnf"]++
		}
	}
	programs, _ := filepath.Glob(filepath.Join(dir, "*/bin/rdma-spec")) // the pattern is sound
	for _, program := range programs {
		r.run(t, dir, program, "version")
	}
}

// render has Helm render what it would install, and expects its images in the registry.
func (r *rehearsal) render(t *testing.T, line string) {
	t.Helper()
	words := strings.Fields(line)
	words[1] = "template"
	out := r.run(t, "", r.helm, append(words[1:], "--plain-http", "--set", "global.imageRegistry="+r.registry)...)
	r.expectImages(t, out)
}

// expectImages expects the images of manifests in the registry, for each architecture.
func (r *rehearsal) expectImages(t *testing.T, manifests string) {
	t.Helper()
	images := regexp.MustCompile(`(?m)^ +image: "?([^"\s]+)"?$`).FindAllStringSubmatch(manifests, -1)
	if len(images) == 0 {
		t.Errorf("no image in\n%s", manifests)
	}
	for _, image := range images {
		reference, err := name.ParseReference(image[1])
		if err != nil {
			t.Fatal(err)
		}
		index, err := remote.Index(reference)
		if err != nil {
			t.Errorf("%s: %v", image[1], err)
			continue
		}
		if manifest, err := index.IndexManifest(); err != nil || len(manifest.Manifests) != len(architectures) {
			t.Errorf("%s is for %+v, %v", image[1], manifest, err)
		}
	}
}

// krew does as krew: it gets each archive that a manifest names, and compares its checksum.
func (r *rehearsal) krew(t *testing.T, manifest []byte) {
	t.Helper()
	var plugin struct {
		Spec struct {
			Platforms []struct{ URI, SHA256 string }
		}
	}
	if err := yaml.Unmarshal(manifest, &plugin); err != nil || len(plugin.Spec.Platforms) == 0 {
		t.Errorf("%v:\n%s", err, manifest)
	}
	for _, p := range plugin.Spec.Platforms {
		archive := fetch(t, strings.Replace(p.URI, publishedFiles, r.files, 1))
		if sum := fmt.Sprintf("%x", sha256.Sum256(archive)); sum != p.SHA256 {
			t.Errorf("%s has the checksum %s, want %s", p.URI, sum, p.SHA256)
		}
	}
}

// fetch gets a file that is published.
func fetch(t *testing.T, address string) []byte {
	t.Helper()
	answer, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }() // it was only read
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Errorf("%s: %s, %v", address, answer.Status, err)
	}
	return text
}

// expectFiles expects that the release has each file that a page names, also outside blocks.
func (r *rehearsal) expectFiles(t *testing.T) {
	t.Helper()
	count := 0
	for _, page := range installingPages {
		for _, file := range regexp.MustCompile(regexp.QuoteMeta(publishedFiles)+`(\S+?)/([\w.+-]+\w)`).FindAllStringSubmatch(
			scratch.Read(t, filepath.Join(top, page)), -1) {
			count++
			if _, err := os.Stat(filepath.Join(r.output, file[2])); err != nil || file[1] != r.tag {
				t.Errorf("%s names %s of %s: %v", page, file[2], file[1], err)
			}
		}
	}
	if count < 6 {
		t.Errorf("%d files found, want more", count)
	}
}
