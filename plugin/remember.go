// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"time"

	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
)

const (
	// owedWithin is how long a promise waits for its container's PostCreateContainer: longer than the kubelet waits for a
	// creation. If the creation fails in between, none comes.
	owedWithin = 10 * time.Minute
	// logAgain is the time after which the same line is logged again.
	logAgain = 10 * time.Minute
	// remembered bounds what is kept of either.
	remembered = 1024
)

// promise is what a container was granted, and why. It never changes.
type promise struct {
	Namespace string        `json:"namespace"`
	Pod       string        `json:"pod"`
	Container string        `json:"container"`
	Signal    policy.Signal `json:"signal"`
	Evidence  string        `json:"evidence"`
	Rule      string        `json:"rule"`
	LeftOut   []string      `json:"leftOut,omitempty"`
	Grant     spec.Grant    `json:"grant"`
	Since     time.Time     `json:"-"` // since when this process knows of it
}

// promised returns what a decision grants.
func promised(c policy.Container, d policy.Decision) promise {
	return promise{c.Namespace, c.Pod, c.Name, d.Signal, d.Evidence, d.Rule, d.LeftOut, *d.Grant, time.Now()}
}

// owed holds the promises that PostCreateContainer has not settled yet, by container.
type owed struct{ promises *cache.LRUExpireCache }

func newOwed() owed { return owed{cache.NewLRUExpireCache(remembered)} }

func (o owed) put(container string, made promise) { o.promises.Add(container, made, owedWithin) }

func (o owed) take(container string) (made promise, owed bool) {
	kept, _ := o.promises.Get(container)
	o.promises.Remove(container)
	made, owed = kept.(promise)
	return made, owed
}

// all returns what is not taken yet.
func (o owed) all() map[string]promise {
	all := map[string]promise{}
	for _, container := range o.promises.Keys() {
		if made, ok := o.promises.Get(container); ok {
			all[container.(string)] = made.(promise)
		}
	}
	return all
}

// throttle keeps repeated lines from filling the log: a kubelet tries a refused container again and again.
type throttle struct{ logged *cache.LRUExpireCache }

func newThrottle() throttle { return throttle{cache.NewLRUExpireCache(remembered)} }

// due reports whether a line should be logged: it was not in the last ten minutes.
func (t throttle) due(line string) bool {
	if _, logged := t.logged.Get(line); logged {
		return false
	}
	t.logged.Add(line, true, logAgain)
	return true
}
