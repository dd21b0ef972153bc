// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/rdma-spec/rdma-spec/plugin/policy/inforce"
)

// state is the plugin's part of the state that a process passes to its successor, which takes over the connection. If
// testdata/state.json changes, increase registration.StateFormat.
type state struct {
	Pending map[string]pendingGrant `json:"pending,omitempty"` // unconfirmed grants, by container ID
	Policy  *inforce.Left           `json:"policy,omitempty"`
	Below   *int                    `json:"below,omitempty"` // number of containers below policy at the registration
}

// State returns the state for the process that takes over the connection.
func (p *Plugin) State() (json.RawMessage, error) {
	return json.Marshal(state{
		Pending: p.confirmer.pending.all(),
		Policy:  p.config.Leave(),
		Below:   p.below.Load(),
	})
}

// Restore decodes the previous process's state. The returned function applies the state. The new process needs the
// state, since the runtime lists its containers only once for each registration.
func (p *Plugin) Restore(left json.RawMessage) (apply func(), err error) {
	var before state
	if err := json.Unmarshal(left, &before); err != nil {
		return nil, fmt.Errorf("state of containers: %w", err)
	}
	return func() {
		for container, grant := range before.Pending {
			grant.Since = time.Now()
			p.confirmer.pending.add(container, grant)
		}
		p.below.Store(before.Below)
		p.config.TookOver(before.Policy)
	}, nil
}
