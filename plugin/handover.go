// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"encoding/json"

	"github.com/rdma-spec/rdma-spec/plugin/repair"
)

// left is what a process leaves to the one that takes its connection over.
type left struct {
	Owed   map[string]promise `json:"owed,omitempty"` // what PostCreateContainer still owes, by container
	Repair *repair.State      `json:"repair,omitempty"`
}

// Leave returns what the process that takes the connection over has to know.
func (p *Plugin) Leave() (json.RawMessage, error) {
	return json.Marshal(left{p.owed.all(), p.repair.Leave()})
}

// TakeOver goes on where the process before has stopped: the runtime lists its containers once a registration.
func (p *Plugin) TakeOver(text json.RawMessage) error {
	var before left
	if err := json.Unmarshal(text, &before); err != nil {
		return err
	}
	for container, made := range before.Owed {
		p.owed.put(container, made)
	}
	p.repair.TakeOver(before.Repair, p.keepsSpecs.Load())
	p.publishNow(true)
	return nil
}
