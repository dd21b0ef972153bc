// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package podresources asks the kubelet which resources the kubelet allocated to a container. The resources have the
// names that device plugins advertise, such as rdma/hca_shared_devices_a. The package depends on the kubelet's pod
// resources API (version 1), but not on the policy.
//
// The kubelet finds pods by namespace and name, and serves 100 requests per second for the whole node. A Client
// therefore makes one lookup for each pod, and caches the response briefly. The cache's key is the pod's sandbox, since
// a sandbox always belongs to the same pod, but another pod can have the same name later.
package podresources

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/rdma-spec/rdma-spec/plugin/breaker"
	"github.com/rdma-spec/rdma-spec/plugin/localrpc"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// DefaultSocket is the socket at which the kubelet serves its pod resources API.
const DefaultSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"

const (
	defaultBudget = time.Minute // longer than any request waits
	// keptFor is how long a response is cached. keptFor is long enough to create a pod's containers one after the other.
	keptFor = 2 * time.Minute
	// keptMost bounds the number of cached responses, and keptContainers bounds the number of containers in each response.
	// A pod's author decides how many containers the pod has, so responses with more containers are not cached.
	keptMost       = 1024
	keptContainers = 64
)

// Options configure a Client. Socket is required.
type Options struct {
	Socket string // the kubelet's socket; DefaultSocket on the node itself
	// Budget is the longest time for a lookup, including retries. An earlier deadline of the caller applies. 0 means a
	// minute.
	Budget time.Duration
	// OnChange, if set, is called when the Client stops calling the kubelet because lookups failed, and when the kubelet
	// responds again. OnChange must not call the Client.
	OnChange func(open bool)
}

// Client queries one kubelet. A Client connects for each lookup, and is safe for concurrent use. Clients are
// independent: failures of a client do not affect other clients.
type Client struct {
	Options
	dial    func(context.Context) (net.Conn, error)
	answers *cache.LRUExpireCache // values of type answer, by sandbox
	flights singleflight.Group
	breaker *breaker.Breaker[answer]
	getless atomic.Bool // the kubelet does not support Get, so List is called directly
}

// New returns a client that has not connected yet.
func New(o Options) *Client {
	o.Budget = cmp.Or(o.Budget, defaultBudget)
	return &Client{
		Options: o,
		dial:    localrpc.Dialer(o.Socket),
		answers: cache.NewLRUExpireCache(keptMost),
		breaker: breaker.New[answer](breaker.Options{
			Failed:   func(err error) bool { return err != nil && !errors.As(err, new(answeredError)) },
			OnChange: o.OnChange,
		}),
	}
}

// Names returns the sorted names of the resources that the kubelet allocated to a container. The result known is false
// if the container might have other resources. The kubelet does not list ordinary init containers. The kubelet's
// response contains no names for resources that a DRA driver allocated, not even for extended resources. The argument
// sandbox is the ID of the pod's sandbox in the runtime, or "" if the ID is unknown.
//
// Names returns at the latest when the context is done or the budget is spent. An error means that the kubelet could
// not be reached, did not respond in time, or does not know the pod. After three consecutive failures, lookups pause,
// and Names returns an error without calling the kubelet.
func (c *Client) Names(ctx context.Context, sandbox, namespace, pod, container string) (names []string,
	known bool, err error) {
	a, err := c.ofPod(ctx, sandbox, namespace, pod)
	if err != nil {
		return nil, false, err
	}
	of, known := a[container]
	return slices.Sorted(maps.Keys(of.devices)), known && !of.dynamic, nil
}

// PodHolds returns the resources that the kubelet allocated to a pod's containers, by name, and whether one of the
// containers has a resource claim. The response omits ordinary init containers. The response includes all other
// containers, even while init containers are starting. PodHolds returns the same errors as Names.
func (c *Client) PodHolds(ctx context.Context,
	sandbox, namespace, pod string) (held []policy.Allotted, claims bool, err error) {
	a, err := c.ofPod(ctx, sandbox, namespace, pod)
	devices := map[string][]string{}
	for _, of := range a {
		claims = claims || of.dynamic
		for name, ids := range of.devices {
			devices[name] = append(devices[name], ids...)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(devices)) {
		slices.Sort(devices[name])
		held = append(held, policy.Allotted{Resource: name, Devices: slices.Compact(devices[name])})
	}
	return held, claims, err
}

func (c *Client) ofPod(ctx context.Context, sandbox, namespace, pod string) (answer, error) {
	if sandbox == "" {
		return c.lookUp(ctx, namespace, pod)
	}
	if a, ok := c.answers.Get(sandbox); ok {
		return a.(answer), nil
	}
	joined, err, _ := c.flights.Do(sandbox, func() (any, error) {
		a, err := c.lookUp(ctx, namespace, pod)
		if err == nil && len(a) <= keptContainers {
			c.answers.Add(sandbox, a, keptFor)
		}
		return a, err
	})
	return joined.(answer), err
}

// lookUp asks the kubelet for a pod. If the kubelet does not support Get, lookUp asks for the list of all pods. If the
// breaker is open, lookUp returns an error.
func (c *Client) lookUp(ctx context.Context, namespace, pod string) (answer, error) {
	if _, err := os.Stat(filepath.Dir(c.Socket)); errors.Is(err, fs.ErrNotExist) { // the node has no kubelet
		return nil, fmt.Errorf("%w: the parent directory of %s does not exist", policy.ErrNoKubelet, c.Socket)
	}
	a, err := c.breaker.Do(ctx, func() (answer, error) {
		ctx, cancel := context.WithTimeout(ctx, c.Budget)
		defer cancel()
		conn, err := localrpc.NewClient(c.dial) // lookups are rare, and kubelets restart
		if err != nil {
			return nil, err
		}
		defer func() { _ = conn.Close() }() // closing the connection loses nothing
		if !c.getless.Load() {
			if a, err := get(ctx, conn, namespace, pod); !errors.Is(err, errNoGet) {
				return a, err
			}
			c.getless.Store(true) // permanent, since every kubelet serves List
		}
		return list(ctx, conn, namespace, pod)
	})
	if errors.Is(err, breaker.ErrOpen) {
		return nil, fmt.Errorf("%d lookups in a row failed, so lookups pause for %s: find out why the kubelet does "+
			"not respond on %s", breaker.Failures, breaker.OpenFor, c.Socket)
	}
	return a, err
}

// Failing reports whether three lookups in a row failed, and the kubelet has not responded since.
func (c *Client) Failing() bool { return c.breaker.Failing() }
