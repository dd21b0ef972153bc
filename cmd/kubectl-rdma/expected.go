// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	scheduling "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/rdma-spec/rdma-spec/docs"
	"github.com/rdma-spec/rdma-spec/plugin/policy/resource"
)

// The DaemonSet and its pods: their label, the container with rdma-spec, the path of the node's files in this
// container, and the annotation with globs for the resources of RDMA nodes.
const (
	podLabel     = "app.kubernetes.io/part-of=rdma-spec"
	container    = "nri-rdma"
	hostRoot     = "/host"
	resourcesKey = "rdma-spec.github.io/resources"
	daemonSets   = "daemonsets"
	noPod        = "no nri-rdma pod is running on the node: run kubectl describe daemonset"
	notSelected  = "no nri-rdma DaemonSet selects the node, but the node has the %s resource"
	notWanted    = "no nri-rdma DaemonSet selects the node"
	notThere     = "no nri-rdma pod is running on the node, or the node does not exist"
	lost         = "the kubelet has not reported the node's status since %s UTC: run kubectl describe node"
	ownTaints    = "node.kubernetes.io/" // DaemonSet pods tolerate these taints
)

// expected contains the nodes that should respond.
type expected struct {
	pods     map[string]types.NamespacedName // the pods to query, by node
	silent   map[string]string               // why a node without a pod does not respond
	desired  int                             // the DaemonSets' desired number of pods, if nodes cannot be listed
	unlisted error                           // why nodes cannot be listed
}

// expected finds the nodes that should respond: nodes that the DaemonSets select, nodes with an RDMA resource, and
// nodes with a pod of a DaemonSet. If nodes are named, it includes only the named nodes.
func (o *options) expected(c *cluster) (*expected, error) {
	nodes, err := c.nodes(o.selector, o.named...)
	f := &expected{silent: map[string]string{}, unlisted: err}
	if err != nil && (o.selector != "" || !apierrors.IsForbidden(errors.Unwrap(err))) {
		return nil, err
	}
	for _, name := range o.named {
		if nodes[name] == nil && f.unlisted == nil {
			return nil, noNode(name, o.selector)
		}
		f.silent[name] = notWanted
		if f.unlisted != nil {
			f.silent[name] = notThere
		}
	}
	sets, err := c.pluginSets(o.namespace)
	if err != nil {
		return nil, err
	}
	if f.pods, err = c.podsOfNodes(o, nodes); err != nil {
		return nil, err
	}
	if f.unlisted != nil && len(o.named) == 0 {
		for _, d := range sets {
			f.desired += int(d.Status.DesiredNumberScheduled)
		}
	}
	for name, node := range nodes {
		_, runs := f.pods[name]
		held := rdmaResource(sets, node)
		switch since := lostSince(node); {
		case runs && since != "":
			delete(f.pods, name)
			f.silent[name] = fmt.Sprintf(lost, since)
		case runs:
		case slices.ContainsFunc(sets, func(d *appsv1.DaemonSet) bool { return selects(d, node) }):
			f.silent[name] = noPod
		case held != "":
			f.silent[name] = fmt.Sprintf(notSelected, held)
		}
	}
	for name := range f.pods {
		delete(f.silent, name)
	}
	if len(sets) == 0 && len(f.pods) == 0 || len(f.pods)+len(f.silent)+f.desired == 0 {
		return nil, o.noPlugin()
	}
	return f, nil
}

// noPlugin returns the error if no plugin is found.
func (o *options) noPlugin() error {
	where := "namespace " + o.namespace
	if o.namespace == "" {
		where = "any namespace"
	}
	if o.selector != "" {
		where += " on a node with " + o.selector
	}
	return fmt.Errorf("no pod of the nri-rdma DaemonSet is running in %s: use --namespace or "+
		"--all-namespaces, or install the plugin (%s)", where, docs.Site+"install")
}

// noNode returns the error for a node that does not exist in the cluster.
func noNode(name, selector string) error {
	if selector != "" {
		return fmt.Errorf("no node %q with the labels %s: to list the nodes that have these labels, "+
			"run kubectl get nodes -l %s", name, selector, selector)
	}
	return fmt.Errorf("no node %q: to list the nodes, run kubectl get nodes", name)
}

// pluginSets returns the DaemonSets that run the plugin.
func (c *cluster) pluginSets(namespace string) (sets []*appsv1.DaemonSet, err error) {
	err = list(c, daemonSets, namespace, metav1.ListOptions{LabelSelector: podLabel}, func(d *appsv1.DaemonSet) {
		if isPlugin(&d.Spec.Template.Spec) {
			sets = append(sets, d)
		}
	})
	return sets, err
}

// lostSince returns the time since when a node's kubelet has not reported; "" if the kubelet reports. A kubelet that
// reports a node as not ready still responds.
func lostSince(node *corev1.Node) string {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionUnknown {
			return c.LastTransitionTime.UTC().Format(time.DateTime)
		}
	}
	return ""
}

// isPlugin reports whether a pod contains the plugin. The reporter of deploy/node-readiness has the same label.
func isPlugin(pod *corev1.PodSpec) bool {
	return slices.ContainsFunc(pod.Containers, func(c corev1.Container) bool { return c.Name == container })
}

// selects reports whether a DaemonSet should have a pod on a node.
func selects(d *appsv1.DaemonSet, node *corev1.Node) bool {
	spec := d.Spec.Template.Spec
	fits, err := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: spec}).Match(node)
	repels := func(t *corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectPreferNoSchedule && !strings.HasPrefix(t.Key, ownTaints)
	}
	_, repelled := scheduling.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, spec.Tolerations, repels,
		true)
	return err == nil && fits && !repelled
}

// rdmaResource returns an RDMA resource of a node; "" if the node has none.
func rdmaResource(sets []*appsv1.DaemonSet, node *corev1.Node) string {
	var globs []string
	for _, d := range sets {
		globs = append(globs, strings.FieldsFunc(d.Annotations[resourcesKey], func(r rune) bool { return r == ',' })...)
	}
	for _, name := range slices.Sorted(maps.Keys(node.Status.Capacity)) {
		is := slices.ContainsFunc(globs, func(glob string) bool {
			matches, err := path.Match(glob, string(name))
			return matches && err == nil
		}) || len(globs) == 0 && resource.IsRDMA(string(name))
		if amount := node.Status.Capacity[name]; is && !amount.IsZero() {
			return string(name)
		}
	}
	return ""
}

// podsOfNodes returns the DaemonSets' pod on each wanted node. During an update, a node can have two pods. In this
// case, the ready pod is queried. A pod that is not ready is also queried, because it might be running.
func (c *cluster) podsOfNodes(o *options, wanted map[string]*corev1.Node) (map[string]types.NamespacedName, error) {
	pods := map[string]types.NamespacedName{}
	ready := map[string]bool{}
	err := listOf(c, "pods", o.namespace, podLabel, "spec.nodeName", o.named, func(p *corev1.Pod) {
		node := p.Spec.NodeName
		_, in := wanted[node]
		if !isPlugin(&p.Spec) || node == "" || p.DeletionTimestamp != nil || ready[node] || o.selector != "" && !in {
			return
		}
		pods[node] = types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
		ready[node] = slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
	})
	return pods, err
}
