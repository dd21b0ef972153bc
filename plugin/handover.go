// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/rdma-spec/rdma-spec/plugin/policy/inforce"
	"github.com/rdma-spec/rdma-spec/plugin/registration/handover"
)

// stateFormat is the format of state. Whatever changes testdata/state.json is another format, with another number.
const stateFormat = 3

// state is what a process leaves to the one that takes its connection over.
type state struct {
	Format int                `json:"format"`
	Owed   map[string]promise `json:"owed,omitempty"` // what PostCreateContainer still owes, by container
	Policy *inforce.Left      `json:"policy,omitempty"`
	Below  *int               `json:"below,omitempty"` // how many containers were below policy when it registered
}

// Leave returns what the process that takes the connection over has to know.
func (p *Plugin) Leave() (json.RawMessage, error) {
	return json.Marshal(state{stateFormat, p.owed.all(), p.config.Leave(), p.below.Load()})
}

// Understand reads what the process before has left. The function that it returns goes on where that one has stopped:
// the runtime lists its containers once a registration.
func (p *Plugin) Understand(left json.RawMessage) (goOn func(), err error) {
	var before state
	if err := handover.Decode(left, stateFormat, &before); err != nil {
		return nil, fmt.Errorf("what it knows of containers: %w", err)
	}
	return func() {
		for container, made := range before.Owed {
			made.Since = time.Now()
			p.owed.put(container, made)
		}
		p.below.Store(before.Below)
		p.config.TookOver(before.Policy)
	}, nil
}
