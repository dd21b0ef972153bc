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

// Namespace is the namespace of every static pod here.
const Namespace = metav1.NamespaceDefault

// Pod is what a pod's author writes. It is in the node's network.
type Pod struct {
	Name        string
	Annotations map[string]string
	Init        []Container
	Containers  []Container
}

// Container is what a pod's author writes of a container. It has the node's programs at their places.
type Container struct {
	Name     string
	Script   string // for the shell; "" sleeps for ever
	Resource string // a resource of which it requests one
	User     int64  // 0 is the image's: root
	Sidecar  bool   // an init container that goes on beside the others: a restartable one
}

// FullName is a static pod's name in the kubelet's words: the node's is part of it.
func (k *Kubelet) FullName(pod string) string { return pod + "-" + k.NodeName() }

// NodeName is what the kubelet calls the node.
func (k *Kubelet) NodeName() string { return strings.ToLower(k.node) }

// Create has the kubelet run a pod.
func (k *Kubelet) Create(pod Pod) error {
	text, err := json.MarshalIndent(pod.Manifest(), "", "  ")
	if err != nil {
		return err
	}
	// The kubelet must not read half a manifest. It passes over names that begin with a dot.
	half := filepath.Join(manifests, "."+pod.Name)
	if err := os.WriteFile(half, text, 0o644); err != nil {
		return err
	}
	return os.Rename(half, manifestFile(pod.Name))
}

// Delete has the kubelet end a pod. It does so in its own time.
func (k *Kubelet) Delete(pod string) error { return os.Remove(manifestFile(pod)) }

func manifestFile(pod string) string { return filepath.Join(manifests, pod+".json") }

// Manifest is the pod in Kubernetes' words.
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

// programs are the node's programs, what the verbs programs among them need, and where a container finds them.
var programs = []struct{ name, host, container string }{
	{"usr", "/usr", "/usr"},
	{"lib", "/usr/lib", "/lib"},
	{"lib64", "/usr/lib64", "/lib64"},
	{"providers", "/etc/libibverbs.d", "/etc/libibverbs.d"},
}
