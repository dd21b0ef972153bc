// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/rdma-spec/rdma-spec/plugin/policy/inforce"
)

// state is the plugin's part of what a process leaves to the one that takes its connection over. Whoever changes
// testdata/state.json raises registration.StateFormat.
type state struct {
	Pending map[string]pendingGrant `json:"pending,omitempty"` // grants to confirm, by container
	Policy  *inforce.Left           `json:"policy,omitempty"`
	Below   *int                    `json:"below,omitempty"` // how many containers were below policy when it registered
}

// State returns what the process that takes the connection over has to know.
func (p *Plugin) State() (json.RawMessage, error) {
	return json.Marshal(state{
		Pending: p.confirmer.pending.all(),
		Policy:  p.config.Leave(),
		Below:   p.below.Load(),
	})
}

// Restore reads the state of the process before. The function that it returns goes on where that one has stopped: the
// runtime lists its containers once a registration.
func (p *Plugin) Restore(left json.RawMessage) (goOn func(), err error) {
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
