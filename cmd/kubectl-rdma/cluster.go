// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // kubeconfigs that log in by OIDC
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/pager"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
)

// cluster is a connection to an API server, only for nodes, pods, and DaemonSets. Clients for all objects would double
// the size of the program.
type cluster struct {
	context.Context
	config     *rest.Config
	core       *rest.RESTClient
	parameters runtime.ParameterCodec
}

func (o *options) connect(ctx context.Context) (*cluster, error) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(o.rules, &o.overrides).ClientConfig()
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), appsv1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	config.APIPath = "/api"
	config.GroupVersion = &corev1.SchemeGroupVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.QPS = -1 // the API server has its own limits
	core, err := rest.RESTClientFor(config)
	return &cluster{ctx, config, core, runtime.NewParameterCodec(scheme)}, err
}

// list reads objects page by page, because all objects of a large cluster would take hundreds of megabytes.
func list[T runtime.Object](c *cluster, resource, namespace string, which metav1.ListOptions, do func(T)) error {
	pages := pager.New(func(ctx context.Context, page metav1.ListOptions) (runtime.Object, error) {
		get := c.core.Get()
		if resource == daemonSets {
			get = get.AbsPath("/apis/apps/v1")
		}
		return get.NamespaceIfScoped(namespace, namespace != "").Resource(resource).
			VersionedParams(&page, c.parameters).Do(ctx).Get()
	})
	pages.PageBufferSize = 1
	err := pages.EachListItem(c, which, func(object runtime.Object) error {
		if item, ok := object.(T); ok {
			do(item)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cannot list %s: %w", resource, err)
	}
	return nil
}

// nodes returns the nodes with the labels, or the named ones among them. It keeps only fields that affect the
// scheduling of pods.
func (c *cluster) nodes(labels string, named ...string) (map[string]*corev1.Node, error) {
	all := map[string]*corev1.Node{}
	err := listOf(c, "nodes", "", labels, "metadata.name", named, func(n *corev1.Node) {
		n.Annotations = nil
		n.ManagedFields = nil
		n.Status.Images = nil
		all[n.Name] = n
	})
	return all, err
}

// listOf lists all objects, or only those in which a field has one of these values. A query about one node therefore
// reads few objects, even in a large cluster.
func listOf[T runtime.Object](c *cluster, resource, namespace, labels, field string, values []string,
	do func(T)) error {
	if len(values) == 0 {
		return list(c, resource, namespace, metav1.ListOptions{LabelSelector: labels}, do)
	}
	for _, value := range values {
		which := metav1.ListOptions{LabelSelector: labels, FieldSelector: fields.OneTermEqualSelector(field, value).String()}
		if err := list(c, resource, namespace, which, do); err != nil {
			return err
		}
	}
	return nil
}

// said stores a node's output, up to a maximum size.
type said struct {
	bytes.Buffer
	most int
}

// Write implements io.Writer.
func (s *said) Write(text []byte) (int, error) {
	if s.Len()+len(text) <= s.most {
		return s.Buffer.Write(text)
	}
	return len(text), nil // truncated output is not valid JSON
}

// exec runs a command in a container, and returns its exit status.
func (c *cluster) exec(ctx context.Context, pod types.NamespacedName, o *corev1.PodExecOptions,
	stdout, stderr io.Writer) (status int, err error) {
	url := c.core.Get().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("exec").
		VersionedParams(o, c.parameters).URL()
	socket, err1 := remotecommand.NewWebSocketExecutor(c.config, http.MethodGet, url.String())
	spdy, err2 := remotecommand.NewSPDYExecutor(c.config, http.MethodPost, url) // API servers before 1.31
	// The error of the WebSocket request, which needs the verb get. SPDY needs the verb create, and loses the kind of an
	// error.
	var forbidden *apierrors.StatusError
	either, err3 := remotecommand.NewFallbackExecutor(socket, spdy, func(err error) bool {
		if failed := (*httpstream.UpgradeFailureError)(nil); errors.As(err, &failed) && apierrors.IsForbidden(failed.Cause) {
			errors.As(failed.Cause, &forbidden)
		}
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err := errors.Join(err1, err2, err3); err != nil {
		return 0, err
	}
	err = either.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: stdout, Stderr: stderr})
	if ended := (exec.CodeExitError{}); errors.As(err, &ended) {
		return ended.Code, nil
	}
	if err != nil && forbidden != nil {
		return 0, forbidden
	}
	return 0, err
}
