// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package podresources asks the kubelet which resources are allocated to a container: the names that its device plugins
// advertise, such as rdma/hca_shared_devices_a. It knows the kubelet's pod resources API (version 1) and no policy.
//
// The kubelet looks pods up by namespace and name and takes 100 questions a second from the whole node. So there is one
// look-up a pod, and the answer is kept by the pod's sandbox for a short while: a sandbox belongs to one pod forever,
// a name does not.
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

// DefaultSocket is where the kubelet serves its pod resources API.
const DefaultSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"

const (
	defaultBudget = time.Minute // longer than any request
	// keptFor is how long an answer is kept: long enough for the containers of a pod to be created one after the other.
	keptFor = 2 * time.Minute
	// keptMost bounds how many answers are kept, each of at most so many containers. The author of a pod decides how many
	// it has; for one that has more, the kubelet is asked each time.
	keptMost       = 1024
	keptContainers = 64
)

// Options are what a Client is made of. Socket must be given.
type Options struct {
	Socket string // the kubelet's socket; DefaultSocket on the node itself
	// how long a look-up may take in all, with every retry, where the caller has more time; 0 is a minute
	Budget time.Duration
	// OnChange, if given, is called when the kubelet is no longer asked because look-ups failed, and when it has answered
	// again. It must not call the Client.
	OnChange func(open bool)
}

// Client asks one kubelet. It connects for each look-up, and is safe for concurrent use. Clients share nothing:
// failures that one sees do not keep another from asking.
type Client struct {
	Options
	dial    func(context.Context) (net.Conn, error)
	answers *cache.LRUExpireCache // of type answer, by sandbox
	flights singleflight.Group
	breaker *breaker.Breaker[answer]
	getless atomic.Bool // the kubelet has no Get: it is asked for the whole list at once
}

// New makes a client. Nothing is dialled.
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

// Names returns the names of the resources that a container holds, sorted. Known is false if it may hold others: the
// kubelet does not list ordinary init containers, and what a DRA driver has allotted, extended resources too, has no
// resource name in its answer. The sandbox is the ID of the pod's sandbox in the runtime, "" if it is not known.
//
// It returns when the context is done, or the budget is spent. An error means that the kubelet was not reached, did not
// answer in time, does not know the pod, or is not asked for a while because it failed three times in a row.
func (c *Client) Names(ctx context.Context, sandbox, namespace, pod, container string) (names []string,
	known bool, err error) {
	a, err := c.ofPod(ctx, sandbox, namespace, pod)
	if err != nil {
		return nil, false, err
	}
	of, known := a[container]
	return slices.Sorted(maps.Keys(of.devices)), known && !of.dynamic, nil
}

// PodHolds returns the resources that the containers of a pod hold, by name, and whether one of them has a resource
// claim. Ordinary init containers are not in the answer; the others are, also while those start. Errors are those of
// Names.
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

// lookUp asks the kubelet for a pod, or for its list where it cannot be asked for a pod, unless the breaker is open.
func (c *Client) lookUp(ctx context.Context, namespace, pod string) (answer, error) {
	if _, err := os.Stat(filepath.Dir(c.Socket)); errors.Is(err, fs.ErrNotExist) { // nobody to wait for
		return nil, fmt.Errorf("%w: the directory of %s does not exist", policy.ErrNoKubelet, c.Socket)
	}
	a, err := c.breaker.Do(ctx, func() (answer, error) {
		ctx, cancel := context.WithTimeout(ctx, c.Budget)
		defer cancel()
		conn, err := localrpc.NewClient(c.dial) // look-ups are rare, and kubelets restart
		if err != nil {
			return nil, err
		}
		defer func() { _ = conn.Close() }() // nothing is lost with it
		if !c.getless.Load() {
			if a, err := get(ctx, conn, namespace, pod); !errors.Is(err, errNoGet) {
				return a, err
			}
			c.getless.Store(true) // List is served by every kubelet, so this never needs to be taken back
		}
		return list(ctx, conn, namespace, pod)
	})
	if errors.Is(err, breaker.ErrOpen) {
		return nil, fmt.Errorf("%d lookups in a row failed, so the kubelet is not called for %s: find out why it "+
			"does not serve %s", breaker.Failures, breaker.OpenFor, c.Socket)
	}
	return a, err
}

// Failing reports whether look-ups have failed three times in a row, and the kubelet has not answered since.
func (c *Client) Failing() bool { return c.breaker.Failing() }
