// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	requests "k8s.io/component-helpers/resource"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/plugin/policy/resource"
)

// holding is an RDMA resource of a node, with the pods to which it is allocated.
type holding struct {
	Node        string           `json:"node"`
	Resource    string           `json:"resource"`
	Capacity    int64            `json:"capacity"`
	Allocatable int64            `json:"allocatable"`
	Pods        map[string]int64 `json:"pods"`            // by NAMESPACE/POD, the amount allocated to the pod
	Stale       string           `json:"stale,omitempty"` // why the resource cannot be allocated, and the fix
}

func (o *options) resources() *cobra.Command {
	return &cobra.Command{
		Use:   "resources [RESOURCE…]",
		Short: "List the RDMA resources of all nodes, and the pods that use them",
		Long: `List the RDMA resources of all nodes, and the pods to which they are allocated. The command
queries only the API server, and does not need the DaemonSet. The command recognizes RDMA resources
by their names. To include other resources, specify them as arguments.

A resource is stale if the node has no device for it. The exit status is 1 if a resource is stale,
and 3 if no node has an RDMA resource.`,
		Example: "  kubectl rdma resources\n  kubectl rdma resources openshift.io/mlxnics -l node-role.example.com/gpu=true",
		RunE: func(cmd *cobra.Command, named []string) error {
			c, err := o.connect(cmd.Context())
			if err != nil {
				return err
			}
			all, err := c.holdings(o.selector, named)
			if err != nil {
				return err
			}
			var rows [][]string
			stale := false
			for _, h := range all {
				held, pods := h.total()
				rows = append(rows, []string{h.Node, h.Resource, strconv.FormatInt(h.Capacity, 10),
					strconv.FormatInt(h.Allocatable, 10), strconv.FormatInt(held, 10), pods, h.Stale})
				stale = stale || h.Stale != ""
			}
			err = o.write("resources", all, "NODE RESOURCE CAPACITY ALLOCATABLE HELD PODS STALE", rows)
			switch {
			case err != nil:
				return err
			case len(all) == 0:
				fmt.Fprintln(o.stderr, "kubectl rdma: no node has an RDMA resource: check that a device plugin is running, or "+
					"specify the plugin's resource as an argument")
				return cli.ExitStatus(unanswered)
			case stale:
				return cli.ErrProblemFound
			}
			return nil
		},
	}
}

// total returns the amount allocated to all pods, and the pods' names.
func (h *holding) total() (sum int64, pods string) {
	for _, held := range h.Pods {
		sum += held
	}
	return sum, joinFirst(slices.Sorted(maps.Keys(h.Pods)))
}

// joinFirst joins the first names, so that the result fits on a screen.
func joinFirst(names []string) string {
	const most = 4
	if len(names) > most {
		names = append(slices.Clone(names[:most]), fmt.Sprintf("%d more", len(names)-most))
	}
	return strings.Join(names, ",")
}

// holdings returns the RDMA resources of nodes, and of the pods on these nodes.
func (c *cluster) holdings(labels string, named []string) ([]*holding, error) {
	all := map[[2]string]*holding{}
	nodes, err := c.nodes(labels)
	if err != nil {
		return nil, err
	}
	add := func(node string, held corev1.ResourceList, pod string) {
		for name, amount := range held {
			if !resource.IsRDMA(string(name)) && !slices.Contains(named, string(name)) {
				continue
			}
			key := [2]string{node, string(name)}
			if all[key] == nil {
				status := nodes[node].Status
				all[key] = &holding{Node: node, Resource: string(name), Pods: map[string]int64{},
					Capacity: status.Capacity.Name(name, "").Value(), Allocatable: status.Allocatable.Name(name, "").Value()}
			}
			if pod != "" {
				all[key].Pods[pod] = amount.Value()
			}
		}
	}
	for name, node := range nodes {
		add(name, node.Status.Capacity, "")
	}
	running := metav1.ListOptions{FieldSelector: "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"}
	err = list(c, "pods", "", running, func(p *corev1.Pod) {
		if _, in := nodes[p.Spec.NodeName]; in {
			add(p.Spec.NodeName, requests.PodRequests(p, requests.PodResourcesOptions{}), p.Namespace+"/"+p.Name)
		}
	})
	for _, h := range all {
		switch {
		case h.Capacity == 0:
			h.Stale = "no device plugin offers the resource: start one that does, or remove the resource from the node's status"
		case h.Allocatable == 0:
			h.Stale = "the resource's device plugin is not running, or has no healthy devices: check the plugin's pod " +
				"on the node"
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b *holding) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Resource, b.Resource))
	}), err
}
