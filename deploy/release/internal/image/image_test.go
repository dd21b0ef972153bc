// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package image_test

import (
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/rdma-spec/rdma-spec/deploy/release/internal/bundle"
	"github.com/rdma-spec/rdma-spec/deploy/release/internal/image"
	"github.com/rdma-spec/rdma-spec/deploy/release/internal/image/imagetest"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

var created = time.Unix(1_700_000_000, 0)

func options() image.Options {
	programs := func(arch string) []bundle.File {
		return []bundle.File{{Name: "nri-rdma", Content: []byte("plugin " + arch)},
			{Name: "rdma-spec", Content: []byte("tool " + arch)}}
	}
	return image.Options{
		Name: "registry.example.com/rdma-spec:v1.2.3", Version: "v1.2.3", Created: created,
		Programs: map[string][]bundle.File{"amd64": programs("amd64"), "arm64": programs("arm64")},
	}
}

// TestIndex checks that each platform's image has what deploy/Containerfile says.
func TestIndex(t *testing.T) {
	index, err := image.Index(options())
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	paths, entrypoint := repository.Containerfile(t, scratch.Read(t, "../../../Containerfile"))
	var platforms []string
	for _, m := range manifest.Manifests {
		platforms = append(platforms, m.Platform.String())
		arch := m.Platform.Architecture
		img, err := index.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if config.Architecture != arch || config.OS != "linux" || !cmp.Equal(config.Config.Entrypoint, []string{entrypoint}) {
			t.Errorf("%s: the configuration is %+v", arch, config)
		}
		want := map[string]string{paths[0]: "plugin " + arch, paths[1]: "tool " + arch}
		if diff := cmp.Diff(want, imagetest.Programs(t, img, created)); diff != "" {
			t.Errorf("%s: files, -want +got:\n%s", arch, diff)
		}
	}
	if diff := cmp.Diff([]string{"linux/amd64", "linux/arm64"}, platforms); diff != "" {
		t.Errorf("platforms, -want +got:\n%s", diff)
	}
}

func TestIndexNeedsEveryPlatform(t *testing.T) {
	o := options()
	delete(o.Programs, "arm64")
	if _, err := image.Index(o); err == nil || !strings.Contains(err.Error(), "arm64") {
		t.Errorf("error %v, want that it names arm64", err)
	}
}

// TestPush copies a layout to a registry, from which the image comes back as it was, and valid.
func TestPush(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	dir := filepath.Join(scratch.Dir(t), "image")
	if err := image.Write(options(), dir); err != nil {
		t.Fatal(err)
	}
	to := strings.TrimPrefix(server.URL, "http://") + "/rdma-spec:v1.2.3"
	pushed, err := image.Push(dir, to)
	if err != nil {
		t.Fatal(err)
	}
	reference, err := name.ParseReference(to)
	if err != nil {
		t.Fatal(err)
	}
	got, err := remote.Index(reference)
	if err != nil {
		t.Fatal(err)
	}
	want, err := image.Index(options())
	if err != nil {
		t.Fatal(err)
	}
	digests := [2]v1.Hash{}
	for i, index := range []v1.ImageIndex{want, got} {
		if digests[i], err = index.Digest(); err != nil {
			t.Fatal(err)
		}
	}
	if digests[0] != digests[1] {
		t.Errorf("the registry has %s, want %s", digests[1], digests[0])
	}
	if want := strings.TrimSuffix(to, ":v1.2.3") + "@" + digests[0].String(); pushed != want {
		t.Errorf("the image was pushed as %s, want %s", pushed, want)
	}
	if err := validate.Index(got); err != nil {
		t.Error(err)
	}
}

// TestWriteNamesTheImage checks that containerd and skopeo find the image's name in the layout, and that nothing is
// left of what was in the directory. That a layout depends on nothing else is tested with the rest of a release.
func TestWriteNamesTheImage(t *testing.T) {
	dir := filepath.Join(scratch.Dir(t), "image")
	old := filepath.Join(dir, "old/file")
	scratch.File(t, old, "", 0o644)
	if err := image.Write(options(), dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old); err == nil {
		t.Errorf("there still is %s", old)
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"org.opencontainers.image.ref.name": "v1.2.3", "io.containerd.image.name": "registry.example.com/rdma-spec:v1.2.3",
	}
	if diff := cmp.Diff(want, manifest.Manifests[0].Annotations); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	o := options()
	o.Name = "rdma-spec"
	if err := image.Write(o, dir); err == nil {
		t.Error("a name without a registry and a tag is good")
	}
}
