// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
)

// podOnHost returns the pod for a command on a node, based on the DaemonSet's template. The pod is deleted with the
// DaemonSet. If kubectl-rdma does not delete the pod, the pod ends by itself.
func podOnHost(set *appsv1.DaemonSet, node, command string, timeout time.Duration) *corev1.Pod {
	template := set.Spec.Template.Spec
	var plugin corev1.Container
	for _, c := range template.Containers {
		if c.Name == container {
			plugin = c
		}
	}
	yes := true
	no := false
	root := int64(0)
	grace := int64(1)
	directory := corev1.HostPathDirectory
	propagation := corev1.MountPropagationHostToContainer
	seconds := int64(timeout.Seconds()) + 60
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "rdma-spec-" + command + "-" + rand.String(8), Namespace: set.Namespace,
			Labels: map[string]string{"app.kubernetes.io/name": "kubectl-rdma"},
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "apps/v1", Kind: "DaemonSet", Name: set.Name, UID: set.UID},
			},
		},
		Spec: corev1.PodSpec{
			NodeName: node, RestartPolicy: corev1.RestartPolicyNever,
			HostPID: true, HostNetwork: true,
			ActiveDeadlineSeconds: &seconds, TerminationGracePeriodSeconds: &grace,
			ServiceAccountName: template.ServiceAccountName, AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
			ImagePullSecrets: template.ImagePullSecrets, Tolerations: template.Tolerations,
			PriorityClassName: template.PriorityClassName,
			Containers: []corev1.Container{{
				Name: hostContainer, Image: plugin.Image, ImagePullPolicy: plugin.ImagePullPolicy,
				Command:         []string{hostProgram, "sleep", (time.Duration(seconds) * time.Second).String()},
				SecurityContext: &corev1.SecurityContext{Privileged: &yes, RunAsUser: &root, RunAsNonRoot: &no},
				VolumeMounts: []corev1.VolumeMount{
					{Name: "host", MountPath: hostRoot, ReadOnly: true, MountPropagation: &propagation},
				},
			}},
			Volumes: []corev1.Volume{{Name: "host", VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: "/", Type: &directory},
			}}},
		},
	}
}

// callIn waits until a pod is running, runs rdma-spec in the pod, and copies the output on standard error as it
// arrives.
func (c *cluster) callIn(ctx context.Context, pod types.NamespacedName, call []string,
	stdout, stderr io.Writer) (int, error) {
	if err := c.awaitRunning(ctx, pod); err != nil {
		return 0, err
	}
	unbounded := *c.config
	unbounded.Timeout = 0 // the context has a timeout
	in := &cluster{ctx, &unbounded, c.core, c.parameters}
	notes := lines{to: stderr}
	type end struct {
		status int
		err    error
	}
	ended := make(chan end, 1)
	go func() { // a handshake that hangs ignores the context
		status, err := in.exec(ctx, pod, &corev1.PodExecOptions{
			Container: hostContainer, Stdout: true, Stderr: true, Command: append([]string{hostProgram}, call...),
		}, stdout, &notes)
		ended <- end{status, err}
	}()
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case e := <-ended:
		if len(notes.part) > 0 {
			e.err = errors.Join(e.err, notes.write(string(notes.part)))
		}
		return e.status, e.err
	}
}

// waiting is the error for a pod that is not running yet, or that cannot start.
type waiting struct{ why string }

// Error implements error.
func (w *waiting) Error() string { return "the pod is not running: " + w.why }

// hopeless lists the waiting reasons of containers that cannot start.
var hopeless = []string{"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError",
	"CreateContainerError", "RunContainerError"}

// awaitRunning waits until the pod is running.
func (c *cluster) awaitRunning(ctx context.Context, name types.NamespacedName) error {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	seen := &waiting{}
	for {
		var pod corev1.Pod
		err := c.core.Get().Namespace(name.Namespace).Resource("pods").Name(name.Name).Do(ctx).Into(&pod)
		switch {
		case ctx.Err() != nil:
			return seen
		case err != nil:
			return err
		case pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded:
			return &waiting{strings.Trim(pod.Status.Reason+": "+pod.Status.Message, ": ")}
		}
		for _, s := range pod.Status.ContainerStatuses {
			if s.State.Running != nil {
				return nil
			}
			if w := s.State.Waiting; w != nil {
				seen = &waiting{strings.Trim(w.Reason+": "+w.Message, ": ")}
				if slices.Contains(hopeless, w.Reason) {
					return seen
				}
			}
		}
		select {
		case <-ctx.Done():
			return seen
		case <-look.C:
		}
	}
}

// remove deletes a pod, even after an interrupt or a timeout.
func (c *cluster) remove(pod types.NamespacedName) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c), deleteWithin)
	defer cancel()
	err := c.core.Delete().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).Do(ctx).Error()
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// lines writes a node's output line by line as it arrives, without control characters.
type lines struct {
	to   io.Writer
	part []byte
}

// Write implements io.Writer.
func (l *lines) Write(text []byte) (int, error) {
	const longest = 64 << 10
	l.part = append(l.part, text...)
	for {
		line, rest, whole := strings.Cut(string(l.part), "\n")
		if !whole && len(line) < longest {
			return len(text), nil
		}
		l.part = []byte(rest)
		if err := l.write(line); err != nil {
			return 0, err
		}
	}
}

// write writes a line. Commands in the line are for the node itself.
func (l *lines) write(line string) error {
	_, err := io.WriteString(l.to, plain(line)+"\n")
	return err
}
