// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package image builds the container image that the DaemonSet runs. The image contains only nri-rdma and rdma-spec, for
// each platform. The build needs no daemon and no registry, and is reproducible.
package image

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/match"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/rdma-spec/rdma-spec/deploy/release/internal/bundle"
)

// Dir is the directory of the programs in the image.
const Dir = "/usr/local/bin"

// Entrypoint is the program that a container of the image runs.
const Entrypoint = Dir + "/nri-rdma"

// Options are the inputs of an image.
type Options struct {
	Name     string                   // for example, registry.example.com/rdma-spec:v1.2.3
	Version  string                   // for the labels
	Created  time.Time                // also the modification time of every file
	Programs map[string][]bundle.File // by architecture (amd64, arm64); the names contain no directory
}

// platforms lists the architectures in the order in which the index lists them.
var platforms = []string{"amd64", "arm64"}

// Index returns the image for all platforms.
func Index(o Options) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range platforms {
		if len(o.Programs[arch]) == 0 {
			return nil, fmt.Errorf("no programs for %s", arch)
		}
		image, err := build(o, arch)
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	annotated := mutate.Annotations(index, labels(o))
	if index, ok := annotated.(v1.ImageIndex); ok {
		return index, nil
	}
	return nil, fmt.Errorf("the index with annotations has the type %T instead of ImageIndex", annotated)
}

// build returns the image for one architecture.
func build(o Options, arch string) (v1.Image, error) {
	var files []bundle.File
	for _, f := range o.Programs[arch] {
		files = append(files, bundle.File{Name: path.Join(Dir, f.Name)[1:], Mode: 0o755, Content: f.Content})
	}
	text, err := bundle.Tar(files, o.Created)
	if err != nil {
		return nil, err
	}
	opener := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil }
	layer, err := tarball.LayerFromOpener(opener, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{
		OS: "linux", Architecture: arch, Created: v1.Time{Time: o.Created.UTC()},
		RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{Entrypoint: []string{Entrypoint}, Labels: labels(o)},
	})
	if err != nil {
		return nil, err
	}
	return mutate.Append(image, mutate.Addendum{Layer: layer, MediaType: types.OCILayer, History: v1.History{
		Created: v1.Time{Time: o.Created.UTC()}, CreatedBy: "COPY nri-rdma rdma-spec " + Dir + "/",
	}})
}

// labels returns the image's labels. The keys are the pre-defined annotation keys of the OCI image specification.
func labels(o Options) map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":    "rdma-spec",
		"org.opencontainers.image.version":  o.Version,
		"org.opencontainers.image.source":   "https://github.com/rdma-spec/rdma-spec",
		"org.opencontainers.image.licenses": "Apache-2.0",
		"org.opencontainers.image.created":  o.Created.UTC().Format(time.RFC3339),
	}
}

// Write replaces a directory with an OCI layout of the image. When a tool imports the layout, the image has the name in
// Options.
func Write(o Options, dir string) error {
	reference, err := name.NewTag(o.Name, name.StrictValidation)
	if err != nil {
		return err
	}
	index, err := Index(o)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	return path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": reference.TagStr(), // for skopeo and podman
		"io.containerd.image.name":          reference.Name(),   // for containerd
	}))
}

// Digests returns the digest of the image for each architecture in an OCI layout.
func Digests(dir string) (map[string]v1.Hash, error) {
	root, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	indexes, err := partial.FindIndexes(root, match.MediaTypes(string(types.OCIImageIndex)))
	if err != nil {
		return nil, err
	}
	if len(indexes) != 1 {
		return nil, fmt.Errorf("%s contains %d indexes, want 1", dir, len(indexes))
	}
	manifest, err := indexes[0].IndexManifest()
	if err != nil {
		return nil, err
	}
	digests := map[string]v1.Hash{}
	for _, m := range manifest.Manifests {
		digests[m.Platform.Architecture] = m.Digest
	}
	return digests, nil
}

// Push copies the image in an OCI layout to a registry, and returns the image's name with its digest. The options
// contain the registry's credentials.
func Push(dir, to string, options ...remote.Option) (string, error) {
	reference, err := name.ParseReference(to)
	if err != nil {
		return "", err
	}
	root, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return "", err
	}
	manifest, err := root.IndexManifest()
	if err != nil {
		return "", err
	}
	if len(manifest.Manifests) != 1 {
		return "", fmt.Errorf("%s contains %d images, want 1", dir, len(manifest.Manifests))
	}
	digest := manifest.Manifests[0].Digest
	index, err := root.ImageIndex(digest)
	if err != nil {
		return "", err
	}
	return reference.Context().Digest(digest.String()).Name(), remote.WriteIndex(reference, index, options...)
}
