// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
)

const (
	// pendingFor is how long a grant stays pending. If the creation fails, the runtime never calls PostCreateContainer.
	// pendingFor is longer than the kubelet's timeout for a creation.
	pendingFor = 10 * time.Minute
	// pendingMost bounds the number of pending grants.
	pendingMost = 1024
)

// subject contains the log fields for a container and its decision.
type subject struct {
	Namespace string        `json:"namespace"`
	Pod       string        `json:"pod"`
	Container string        `json:"container"`
	Signal    policy.Signal `json:"signal"`
	Evidence  string        `json:"evidence"`
	Rule      string        `json:"rule"`
	LeftOut   []string      `json:"leftOut,omitempty"`
}

func subjectOf(c policy.Container, d policy.Decision) subject {
	return subject{
		Namespace: c.Namespace,
		Pod:       c.Pod,
		Container: c.Name,
		Signal:    d.Signal,
		Evidence:  d.Evidence,
		Rule:      d.Rule,
		LeftOut:   d.LeftOut,
	}
}

// log returns a logger with the subject's fields.
func (s subject) log(to logrus.FieldLogger) logrus.FieldLogger {
	fields := logrus.Fields{
		"pod":       s.Namespace + "/" + s.Pod,
		"container": s.Container,
		"signal":    s.Signal,
		"evidence":  s.Evidence,
		"rule":      s.Rule,
	}
	if len(s.LeftOut) > 0 {
		fields["left_out"] = strings.Join(s.LeftOut, ", ")
	}
	return to.WithFields(fields)
}

// pendingGrant is a grant that the plugin returned to the runtime, but has not confirmed yet. A pendingGrant is
// immutable.
type pendingGrant struct {
	Subject subject    `json:"subject"`
	Grant   spec.Grant `json:"grant"`
	Since   time.Time  `json:"-"` // when this process learned of the grant
}

// newPendingGrant returns a decision's grant as a pending grant, which is pending from the time of the call.
func newPendingGrant(c policy.Container, d policy.Decision) pendingGrant {
	return pendingGrant{Subject: subjectOf(c, d), Grant: *d.Grant, Since: time.Now()}
}

// pendingGrants contains the unconfirmed grants by container ID, and is safe for concurrent use.
type pendingGrants struct{ grants *cache.LRUExpireCache }

func newPendingGrants() pendingGrants { return pendingGrants{cache.NewLRUExpireCache(pendingMost)} }

func (p pendingGrants) add(container string, grant pendingGrant) {
	p.grants.Add(container, grant, pendingFor)
}

// take removes and returns a container's pending grant.
func (p pendingGrants) take(container string) (grant pendingGrant, found bool) {
	kept, _ := p.grants.Get(container)
	p.grants.Remove(container)
	grant, found = kept.(pendingGrant)
	return grant, found
}

func (p pendingGrants) all() map[string]pendingGrant {
	all := map[string]pendingGrant{}
	for _, container := range p.grants.Keys() {
		if grant, found := p.grants.Get(container); found {
			all[container.(string)] = grant.(pendingGrant)
		}
	}
	return all
}
