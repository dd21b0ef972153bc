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

// connect makes the client, which trusts the certificate that the API server makes for itself.
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

// request is what is asked of the API server; the method is GET without a body.
type request struct {
	method, path string
	kind         string // of the body's content
	body         []byte
	group        string // of the user who asks; "" is an administrator
}

// call asks the API server and reads its answer, which may be ignored. What the server refuses is an
// *apierrors.StatusError.
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
	defer func() { _ = got.Body.Close() }() // it was read whole
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

// namespace is where all pods and workloads are.
const namespace = "/namespaces/" + metav1.NamespaceDefault

// paths are the API paths of the kinds of objects.
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

// Apply makes the objects of a text of YAML documents, or changes those that are there. A field that the server does
// not know is an error.
func (c *Cluster) Apply(ctx context.Context, text string) error { return c.apply(ctx, text, applied) }

// TryApply does what Apply does, and changes nothing.
func (c *Cluster) TryApply(ctx context.Context, text string) error {
	return c.apply(ctx, text, applied+"&"+dryRun)
}

// ApplyStatus changes the status of the objects of a text, in place of the controllers that the cluster does not have.
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

// TryPatch reports whether the server would take a strategic merge patch of an object, or of its subresource, as in
// name/status.
func (c *Cluster) TryPatch(ctx context.Context, kind, name, patch string) error {
	return c.TryPatchAs(ctx, "", kind, name, patch)
}

// TryPatchAs is TryPatch for a user in a group, such as system:nodes.
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

// TryBind reports whether the server would take a pod's binding to a node, as a scheduler sends it: to bindings, or to
// the pod's own subresource, pods/NAME/binding.
func (c *Cluster) TryBind(ctx context.Context, resource string, binding *corev1.Binding) error {
	text, err := json.Marshal(binding)
	if err != nil {
		return err
	}
	path := "/api/v1" + namespace + "/" + resource + "?" + dryRun
	return c.call(ctx, request{method: http.MethodPost, path: path, kind: "application/json", body: text}, nil)
}

// Delete removes the objects of a text.
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

// Create makes a pod, and gives it as the server has taken it.
func (c *Cluster) Create(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	return c.post(ctx, pods, pod)
}

// Try returns a pod as the server would take it, and makes none.
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

// Pods returns the pods of a namespace with a label, as in app=web.
func (c *Cluster) Pods(ctx context.Context, namespace, label string) ([]corev1.Pod, error) {
	var list corev1.PodList
	err := c.call(ctx, request{path: "/api/v1/namespaces/" + namespace + "/pods?labelSelector=" +
		url.QueryEscape(label)}, &list)
	return list.Items, err
}

// DeletePod has a pod's node end it, and waits until it is gone.
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
