// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rdma-spec/rdma-spec/test/node"
)

// Namespace is the namespace of all static pods.
const Namespace = metav1.NamespaceDefault

// Pod is the part of a pod that its author writes. The pod is in the node's network.
type Pod struct {
	Name        string
	Annotations map[string]string
	Init        []Container
	Containers  []Container
}

// Container is the part of a container that the pod's author writes. The container has the node's programs at their
// paths.
type Container struct {
	Name     string
	Script   string // run by the shell; "" sleeps forever
	Resource string // the container requests one of this resource
	User     int64  // 0 means the image's user, root
	Sidecar  bool   // a restartable init container, which keeps running next to the others
}

// FullName returns the kubelet's name for a static pod, which ends with the node's name.
func (k *Kubelet) FullName(pod string) string { return pod + "-" + k.NodeName() }

// NodeName returns the kubelet's name for the node.
func (k *Kubelet) NodeName() string { return strings.ToLower(k.node) }

// Create makes the kubelet run a pod.
func (k *Kubelet) Create(pod Pod) error {
	text, err := json.MarshalIndent(pod.Manifest(), "", "  ")
	if err != nil {
		return err
	}
	// The kubelet must not read an incomplete manifest. It ignores files whose names begin with a dot.
	half := filepath.Join(manifests, "."+pod.Name)
	if err := os.WriteFile(half, text, 0o644); err != nil {
		return err
	}
	return os.Rename(half, manifestFile(pod.Name))
}

// Delete makes the kubelet end a pod. It does not wait for that.
func (k *Kubelet) Delete(pod string) error { return os.Remove(manifestFile(pod)) }

func manifestFile(pod string) string { return filepath.Join(manifests, pod+".json") }

// Manifest returns the pod as a Kubernetes object.
func (p Pod) Manifest() *corev1.Pod {
	grace := int64(1)
	m := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: Namespace, Annotations: p.Annotations},
		Spec:       corev1.PodSpec{HostNetwork: true, TerminationGracePeriodSeconds: &grace},
	}
	for _, mount := range programs {
		m.Spec.Volumes = append(m.Spec.Volumes, corev1.Volume{
			Name: mount.name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: mount.host}},
		})
	}
	for _, c := range p.Init {
		m.Spec.InitContainers = append(m.Spec.InitContainers, c.manifest())
	}
	for _, c := range p.Containers {
		m.Spec.Containers = append(m.Spec.Containers, c.manifest())
	}
	return m
}

func (c Container) manifest() corev1.Container {
	script := c.Script
	if script == "" {
		script = "sleep 1000000"
	}
	m := corev1.Container{
		Name: c.Name, Image: node.ImageName("busybox"), ImagePullPolicy: corev1.PullNever,
		Command: []string{"/bin/busybox", "sh", "-c", script},
	}
	for _, mount := range programs {
		m.VolumeMounts = append(m.VolumeMounts, corev1.VolumeMount{Name: mount.name,
			MountPath: mount.container, ReadOnly: true})
	}
	if c.Resource != "" {
		m.Resources.Limits = corev1.ResourceList{corev1.ResourceName(c.Resource): resource.MustParse("1")}
	}
	if c.User != 0 {
		m.SecurityContext = &corev1.SecurityContext{RunAsUser: &c.User}
	}
	if c.Sidecar {
		always := corev1.ContainerRestartPolicyAlways
		m.RestartPolicy = &always
	}
	return m
}

// programs are the node's programs, and the files that its verbs programs need, each with its path on the node and in a
// container.
var programs = []struct{ name, host, container string }{
	{"usr", "/usr", "/usr"},
	{"lib", "/usr/lib", "/lib"},
	{"lib64", "/usr/lib64", "/lib64"},
	{"providers", "/etc/libibverbs.d", "/etc/libibverbs.d"},
}
