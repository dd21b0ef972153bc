// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// connect creates the client, which trusts the certificate that the API server generates.
func (c *Cluster) connect() error {
	if c.client != nil {
		return nil
	}
	text, err := os.ReadFile(certificate)
	if err != nil {
		return err
	}
	trusted := x509.NewCertPool()
	if !trusted.AppendCertsFromPEM(text) {
		return errors.New("the API server's certificate is not written yet")
	}
	c.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}}}
	return nil
}

// request is a request to the API server. Without a body, its method is GET.
type request struct {
	method, path string
	kind         string // the content type of the body
	body         []byte
	group        string // the group of the user who sends the request; "" means an administrator
}

// call sends a request to the API server, and decodes the response unless answer is nil. If the server refuses the
// request, the error is an *apierrors.StatusError.
func (c *Cluster) call(ctx context.Context, r request, answer any) error {
	asked, err := http.NewRequestWithContext(ctx, r.method, address+r.path, bytes.NewReader(r.body))
	if err != nil {
		return err
	}
	asked.Header.Set("Authorization", "Bearer "+token)
	asked.Header.Set("Content-Type", r.kind)
	if r.group != "" {
		asked.Header.Set("Impersonate-User", "test")
		asked.Header.Set("Impersonate-Group", r.group)
	}
	got, err := c.client.Do(asked)
	if err != nil {
		return err
	}
	defer func() { _ = got.Body.Close() }() // it was read to its end
	text, err := io.ReadAll(got.Body)
	if err != nil {
		return err
	}
	if got.StatusCode >= http.StatusBadRequest {
		refused := &apierrors.StatusError{}
		if json.Unmarshal(text, &refused.ErrStatus) != nil {
			return fmt.Errorf("%s: %s: %s", r.path, got.Status, text)
		}
		return refused
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(text, answer)
}

// namespace is the API path of the namespace that contains all pods and workloads.
const namespace = "/namespaces/" + metav1.NamespaceDefault

// paths are the API paths of objects by kind.
var paths = map[string]string{
	"CronJob":                          "/apis/batch/v1" + namespace + "/cronjobs/",
	"DaemonSet":                        "/apis/apps/v1" + namespace + "/daemonsets/",
	"Deployment":                       "/apis/apps/v1" + namespace + "/deployments/",
	"Job":                              "/apis/batch/v1" + namespace + "/jobs/",
	"MutatingAdmissionPolicy":          "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies/",
	"MutatingAdmissionPolicyBinding":   "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings/",
	"Namespace":                        "/api/v1/namespaces/",
	"Pod":                              pods + "/",
	"ReplicaSet":                       "/apis/apps/v1" + namespace + "/replicasets/",
	"ReplicationController":            "/api/v1" + namespace + "/replicationcontrollers/",
	"ResourceQuota":                    "/api/v1" + namespace + "/resourcequotas/",
	"ResourceClaim":                    "/apis/resource.k8s.io/v1" + namespace + "/resourceclaims/",
	"ResourceClaimTemplate":            "/apis/resource.k8s.io/v1" + namespace + "/resourceclaimtemplates/",
	"RuntimeClass":                     "/apis/node.k8s.io/v1/runtimeclasses/",
	"StatefulSet":                      "/apis/apps/v1" + namespace + "/statefulsets/",
	"ValidatingAdmissionPolicy":        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/",
	"ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/",
}

const (
	applied = "?fieldManager=test&force=true&fieldValidation=Strict"
	dryRun  = "dryRun=All"
)

// Apply creates or changes the objects in a text of YAML documents. It returns an error if the server does not know a
// field.
func (c *Cluster) Apply(ctx context.Context, text string) error { return c.apply(ctx, text, applied) }

// TryApply is like Apply, but changes nothing.
func (c *Cluster) TryApply(ctx context.Context, text string) error {
	return c.apply(ctx, text, applied+"&"+dryRun)
}

// ApplyStatus changes the status of the objects in a text, instead of the controllers that the cluster lacks.
func (c *Cluster) ApplyStatus(ctx context.Context, text string) error {
	return c.apply(ctx, text, "/status"+applied)
}

func (c *Cluster) apply(ctx context.Context, text, options string) error {
	return each(text, func(path, document string) error {
		return c.call(ctx, request{
			method: http.MethodPatch, path: path + options, kind: "application/apply-patch+yaml", body: []byte(document),
		}, nil)
	})
}

// TryPatch returns nil if the server would accept a strategic merge patch of an object. To patch a subresource, append
// its name, such as NAME/status.
func (c *Cluster) TryPatch(ctx context.Context, kind, name, patch string) error {
	return c.TryPatchAs(ctx, "", kind, name, patch)
}

// TryPatchAs is like TryPatch for a user in a group, such as system:nodes.
func (c *Cluster) TryPatchAs(ctx context.Context, group, kind, name, patch string) error {
	text, err := yaml.YAMLToJSON([]byte(patch))
	if err != nil {
		return err
	}
	return c.call(ctx, request{
		method: http.MethodPatch, path: paths[kind] + name + "?" + dryRun,
		kind: "application/strategic-merge-patch+json", body: text, group: group,
	}, nil)
}

// TryBind returns nil if the server would accept a pod's binding to a node, as a scheduler sends it. resource is
// bindings, or the pod's own subresource, pods/NAME/binding.
func (c *Cluster) TryBind(ctx context.Context, resource string, binding *corev1.Binding) error {
	text, err := json.Marshal(binding)
	if err != nil {
		return err
	}
	path := "/api/v1" + namespace + "/" + resource + "?" + dryRun
	return c.call(ctx, request{method: http.MethodPost, path: path, kind: "application/json", body: text}, nil)
}

// Delete deletes the objects in a text.
func (c *Cluster) Delete(ctx context.Context, text string) error {
	return each(text,
		func(path, _ string) error { return c.call(ctx, request{method: http.MethodDelete, path: path}, nil) })
}

func each(text string, do func(path, document string) error) error {
	for document := range strings.SplitSeq(text, "\n---\n") {
		var object metav1.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			return err
		}
		path, ok := paths[object.Kind]
		if !ok {
			return fmt.Errorf("the API path of kind %q is unknown: add it to paths", object.Kind)
		}
		if err := do(path+object.Name, document); err != nil {
			return fmt.Errorf("%s %s: %w", object.Kind, object.Name, err)
		}
	}
	return nil
}

const (
	pods   = "/api/v1" + namespace + "/pods"
	events = "/api/v1" + namespace + "/events"
)

// Create creates a pod, and returns it as the server stored it.
func (c *Cluster) Create(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	return c.post(ctx, pods, pod)
}

// Try returns a pod as the server would store it, but does not create it.
func (c *Cluster) Try(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	return c.post(ctx, pods+"?"+dryRun, pod)
}

func (c *Cluster) post(ctx context.Context, path string, pod *corev1.Pod) (*corev1.Pod, error) {
	text, err := json.Marshal(pod)
	if err != nil {
		return nil, err
	}
	taken := &corev1.Pod{}
	return taken, c.call(ctx, request{method: http.MethodPost, path: path, kind: "application/json", body: text}, taken)
}

// Pod returns a pod.
func (c *Cluster) Pod(ctx context.Context, name string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	return pod, c.call(ctx, request{path: pods + "/" + name}, pod)
}

// Node returns a node.
func (c *Cluster) Node(ctx context.Context, name string) (*corev1.Node, error) {
	n := &corev1.Node{}
	return n, c.call(ctx, request{path: "/api/v1/nodes/" + name}, n)
}

// Pods returns the pods in a namespace that have a label, such as app=web.
func (c *Cluster) Pods(ctx context.Context, namespace, label string) ([]corev1.Pod, error) {
	var list corev1.PodList
	err := c.call(ctx, request{path: "/api/v1/namespaces/" + namespace + "/pods?labelSelector=" +
		url.QueryEscape(label)}, &list)
	return list.Items, err
}

// DeletePod deletes a pod, and waits until it is gone.
func (c *Cluster) DeletePod(ctx context.Context, name string) error {
	if err := c.call(ctx, request{method: http.MethodDelete, path: pods + "/" + name}, nil); err != nil {
		return err
	}
	return c.Await(ctx, "has pod "+name+" gone", func() bool {
		_, err := c.Pod(ctx, name)
		return apierrors.IsNotFound(err)
	})
}

// PodEvents returns the messages of a pod's events.
func (c *Cluster) PodEvents(ctx context.Context, pod string) ([]string, error) {
	return c.messages(ctx, events+"?fieldSelector=involvedObject.name%3D"+pod)
}

// Events returns the messages of a namespace's events.
func (c *Cluster) Events(ctx context.Context, namespace string) ([]string, error) {
	return c.messages(ctx, "/api/v1/namespaces/"+namespace+"/events")
}

func (c *Cluster) messages(ctx context.Context, path string) ([]string, error) {
	var list corev1.EventList
	err := c.call(ctx, request{path: path}, &list)
	var messages []string
	for _, e := range list.Items {
		messages = append(messages, e.Message)
	}
	return messages, err
}
