// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/rdma-spec/rdma-spec/deploy/release/internal/image"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// upstream stands in for what the kustomizations of deploy/device-plugins take from other projects, by the names of
// their DaemonSets: an init container and a volume of their own stay.
var upstream = map[string]struct {
	image string
	names []string
}{
	"k8s-rdma-shared-dev-plugin": {"ghcr.io/mellanox/k8s-rdma-shared-dev-plugin", []string{"rdma-shared-dp-ds"}},
	"sriov-network-device-plugin": {"ghcr.io/k8snetworkplumbingwg/sriov-network-device-plugin",
		[]string{"kube-sriov-device-plugin-amd64", "kube-sriov-device-plugin-arm64"}},
}

const upstreamSet = `---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: %s, namespace: kube-system}
spec:
  selector: {matchLabels: {name: x}}
  template:
    metadata: {labels: {name: x}}
    spec:
      hostNetwork: true
      initContainers: [{name: their-own, image: example.com/theirs}]
      containers: [{name: plugin, image: %s, volumeMounts: [{name: config, mountPath: /config}]}]
      volumes: [{name: config, configMap: {name: %s}}]
`

// TestDevicePluginsWait checks that each kustomization adds one init container, which waits with the image's own tool
// and may do nothing else, to every DaemonSet, and changes nothing else of them but the image.
func TestDevicePluginsWait(t *testing.T) {
	const theirs = "their-own"
	for dir, up := range upstream {
		t.Run(dir, func(t *testing.T) {
			built, configMap := buildDevicePlugin(t, dir, up.image, up.names)
			var sets []string
			for _, object := range between.Split(built, -1) {
				if !strings.Contains(object, "\nkind: DaemonSet\n") {
					continue
				}
				var set appsv1.DaemonSet
				decode(t, object, &set)
				sets = append(sets, set.Name)
				pod := set.Spec.Template.Spec
				byName := map[string]corev1.Container{}
				for _, c := range pod.InitContainers {
					byName[c.Name] = c
				}
				if len(byName) != 2 || byName[theirs].Image != "example.com/theirs" {
					t.Errorf("%s has the init containers %+v", set.Name, pod.InitContainers)
				}
				checkWaits(t, byName["wait-for-nri-rdma"], pod.Volumes)
				if len(pod.Containers) != 1 || !strings.HasPrefix(pod.Containers[0].Image, up.image+":v") ||
					len(pod.Volumes) != 2 || !pod.HostNetwork {
					t.Errorf("%s is changed: %+v", set.Name, pod)
				}
			}
			if diff := cmp.Diff(up.names, sets); diff != "" {
				t.Errorf("DaemonSets (-want +got):\n%s", diff)
			}
			if want := "name: " + configMap + "\n"; !strings.Contains(built, want) || !strings.Contains(built, "config.json: |") {
				t.Errorf("there is no ConfigMap %s with config.json:\n%s", configMap, built)
			}
		})
	}
	entries, err := os.ReadDir(filepath.Join(root, "deploy/device-plugins"))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if _, tested := upstream[entry.Name()]; !tested && entry.Name() != "wait" && entry.Name() != "network-operator" {
			t.Errorf("no test builds device-plugins/%s", entry.Name())
		}
	}
}

// checkWaits checks the init container.
func checkWaits(t *testing.T, c corev1.Container, volumes []corev1.Volume) {
	t.Helper()
	if diff := cmp.Diff([]string{image.Dir + "/rdma-spec", "wait"}, c.Command); diff != "" {
		t.Errorf("the command (-want +got):\n%s", diff)
	}
	if c.Image != "registry.example.com/rdma-spec:devel" {
		t.Errorf("the image is %q", c.Image)
	}
	may := c.SecurityContext
	if may == nil || !*may.RunAsNonRoot || *may.AllowPrivilegeEscalation || !*may.ReadOnlyRootFilesystem ||
		may.Privileged != nil || len(may.Capabilities.Add) > 0 ||
		!cmp.Equal(may.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(c.Ports)+len(c.Env)+len(c.EnvFrom) > 0 {
		t.Errorf("it may do more than wait: %+v", c)
	}
	want := []corev1.VolumeMount{{Name: "rdma-spec", MountPath: "/run/rdma-spec", ReadOnly: true}}
	if diff := cmp.Diff(want, c.VolumeMounts); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
	kind := corev1.HostPathDirectoryOrCreate
	for _, v := range volumes {
		if v.Name == "rdma-spec" {
			if diff := cmp.Diff(&corev1.HostPathVolumeSource{Path: "/run/rdma-spec", Type: &kind}, v.HostPath); diff != "" {
				t.Errorf("volume (-want +got):\n%s", diff)
			}
		}
	}
}

// buildDevicePlugin returns what kustomize makes of a directory of deploy/device-plugins with a stand-in for its
// directory upstream, the only one that names an address, and the name of the device plugin's ConfigMap.
func buildDevicePlugin(t *testing.T, dir, image string, sets []string) (built, configMap string) {
	t.Helper()
	clone := scratch.Dir(t)
	if err := os.CopyFS(clone, os.DirFS(filepath.Join(root, "deploy/device-plugins"))); err != nil {
		t.Fatal(err)
	}
	text := read(t, filepath.Join("deploy/device-plugins", dir, "kustomization.yaml"))
	if strings.Contains(text, "://") {
		t.Errorf("%s has an address, which belongs into the directory upstream alone:\n%s", dir, text)
	}
	name := regexp.MustCompile(`\{name: ([a-z-]+), namespace: kube-system, `).FindStringSubmatch(text)
	if name == nil {
		t.Fatalf("%s makes no ConfigMap", dir)
	}
	configMap = name[1]
	stand := ""
	for _, set := range sets {
		stand += fmt.Sprintf(upstreamSet, set, image, configMap)
	}
	if strings.Contains(text, "behavior: replace") {
		stand += "---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: " + configMap + ", namespace: kube-system}}\n"
	}
	replaced := filepath.Join(clone, dir, "upstream")
	scratch.File(t, filepath.Join(replaced, "kustomization.yaml"), "resources: [daemonset.yaml]\n", 0o644)
	scratch.File(t, filepath.Join(replaced, "daemonset.yaml"), stand, 0o644)
	return build(t, filepath.Join(clone, dir)), configMap
}
