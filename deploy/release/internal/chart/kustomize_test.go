// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// build returns what kustomize makes of a directory, as `kubectl apply -k` does.
func build(t *testing.T, dir string) string {
	t.Helper()
	objects, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := objects.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// between is the line between two objects.
var between = regexp.MustCompile(`(?m)^---\n`)

// byKind returns objects by their kinds. A DaemonSet is decoded strictly.
func byKind(t *testing.T, text string) map[string]any {
	t.Helper()
	objects := map[string]any{}
	for _, object := range between.Split(text, -1) {
		tree := parse(t, object)
		kind := fmt.Sprint(tree["kind"])
		if objects[kind] != nil {
			t.Fatalf("two objects of kind %s", kind)
		}
		objects[kind] = tree
		if kind == "DaemonSet" {
			var set appsv1.DaemonSet
			decode(t, object, &set)
			objects[kind] = set
		}
	}
	return objects
}

// sameObjects checks that two texts have the same objects, but for the order of what a pod has.
func sameObjects(t *testing.T, want, got string) {
	t.Helper()
	anyOrder := cmp.Options{
		cmpopts.SortSlices(func(a, b corev1.Container) bool { return a.Name < b.Name }),
		cmpopts.SortSlices(func(a, b corev1.Volume) bool { return a.Name < b.Name }),
		cmpopts.SortSlices(func(a, b corev1.VolumeMount) bool { return a.MountPath < b.MountPath }),
	}
	if diff := cmp.Diff(byKind(t, want), byKind(t, got), anyOrder); diff != "" {
		t.Errorf("-chart +kustomize:\n%s", diff)
	}
}

// chartObjects returns what the chart renders for the plain manifests, and the namespace, which Helm does not make.
func chartObjects(t *testing.T, values Values) string {
	t.Helper()
	return read(t, "deploy/kustomize/components/namespace/namespace.yaml") + "---\n" + Objects(renderPlain(t, values))
}

// TestOverlays checks that each overlay is what the chart renders, and so is the base, without a namespace.
func TestOverlays(t *testing.T) {
	kustomize := filepath.Join(root, "deploy/kustomize")
	t.Run("base", func(t *testing.T) {
		sameObjects(t, Objects(renderPlain(t, Values{})), build(t, filepath.Join(kustomize, "base")))
	})
	overlays := maps.Clone(components)
	overlays["containerd"] = Values{}
	for name, values := range overlays {
		t.Run(name, func(t *testing.T) {
			sameObjects(t, chartObjects(t, values), build(t, filepath.Join(kustomize, "overlays", name)))
		})
	}
	overlays["namespace"] = Values{} // a component of each
	for _, dir := range []string{"components", "overlays"} {
		entries, err := os.ReadDir(filepath.Join(kustomize, dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			if overlays[entry.Name()] == nil {
				t.Errorf("no test builds %s/%s", dir, entry.Name())
			}
		}
	}
}

// TestKustomization_sharedNamespace checks that a kustomization for a namespace that others use as well has no Namespace object: who
// deletes or prunes it would delete all that is in the namespace.
func TestKustomization_sharedNamespace(t *testing.T) {
	dir := scratch.Dir(t)
	if err := os.CopyFS(filepath.Join(dir, "kustomize"), os.DirFS(filepath.Join(root, "deploy/kustomize"))); err != nil {
		t.Fatal(err)
	}
	for name := range components {
		own := filepath.Join(dir, name)
		scratch.Files(t, own, map[string]string{"kustomization.yaml": "namespace: gpu-operator\nresources: [../kustomize/base]\n" +
			"components: [../kustomize/components/" + name + "]\n"}, 0o644)
		text := build(t, own)
		if strings.Contains(text, "kind: Namespace\n") || strings.Contains(text, "pod-security") ||
			!strings.Contains(text, "\n  namespace: gpu-operator\n") {
			t.Errorf("with the component %s:\n%s", name, text)
		}
	}
}

// TestKustomization_documented checks that the kustomization in docs/install.md is what the chart renders with the same image
// and configuration, and so is one with all components.
func TestKustomization_documented(t *testing.T) {
	const config = "memlock: 16Gi\n"
	found := regexp.MustCompile("(?ms)^ *```yaml\n( *)(resources:.*?)^ *```$").FindStringSubmatch(read(t,
		"docs/install.md"))
	if found == nil {
		t.Fatal("docs/install.md has no block that begins with resources:")
	}
	documented := regexp.MustCompile("(?m)^"+found[1]).ReplaceAllString(found[2], "")
	list := regexp.MustCompile(`(?m)^components:\n(  - .*\n)+`)
	if !list.MatchString(documented) {
		t.Fatalf("docs/install.md lists no components:\n%s", documented)
	}
	all := "components:\n  - ../rdma-spec/deploy/kustomize/components/namespace\n"
	values := Values{}
	for _, name := range slices.Sorted(maps.Keys(components)) {
		all += "  - ../rdma-spec/deploy/kustomize/components/" + name + "\n"
		maps.Copy(values, components[name])
	}
	documentedValues := Values{"validator": on, "repair": on}
	for _, test := range []struct {
		name, text string
		values     Values
	}{
		{"documented", documented, documentedValues},
		{"all components", list.ReplaceAllString(documented, all), values},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := scratch.Dir(t)
			clone, own := filepath.Join(dir, "rdma-spec/deploy/kustomize"), filepath.Join(dir, "own")
			if err := os.CopyFS(clone, os.DirFS(filepath.Join(root, "deploy/kustomize"))); err != nil {
				t.Fatal(err)
			}
			scratch.Files(t, own, map[string]string{"kustomization.yaml": test.text, "config.yaml": config}, 0o644)
			want := chartObjects(t, test.values)
			want = strings.ReplaceAll(want, "image: rdma-spec:devel", "image: registry.example.com/rdma-spec:devel")
			want = strings.ReplaceAll(want, policyKey+": |\n          {}\n", policyKey+": |\n          "+config)
			sameObjects(t, want, build(t, own))
		})
	}
}
