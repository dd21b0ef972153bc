// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package inforce

import (
	"fmt"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// HandedOver puts in force the configuration that the runtime passes to the plugin, unless the plugin has a
// configuration file. HandedOver handles errors in the same way as Use.
func (c *Current) HandedOver(config, runtime string) {
	if config == "" {
		return
	}
	source := "the configuration that " + runtime + " passes to the plugin at registration"
	handed, err := policy.FromText([]byte(config))
	if err != nil {
		err = fmt.Errorf("%s: %w", source, err)
	}
	c.prefer(&version{handed, source, fromRuntime}, err)
}

// Left is the policy that a process passes to the next process, which takes over the connection to the runtime.
type Left struct {
	Source string `json:"source"`
	Text   string `json:"text"`
}

// Leave returns the policy in force for the next process, or nil if the policy has no text.
func (c *Current) Leave() *Left {
	current := c.now.Load()
	if current.policy.Missing() != nil || current.policy.Text() == nil {
		return nil
	}
	return &Left{current.source, string(current.policy.Text())}
}

// TookOver must be called when the plugin takes over a connection. The argument is the policy that the previous process
// passed on. If the configuration of this process is refused, the policy of the previous process stays in force.
func (c *Current) TookOver(before *Left) {
	defer c.runNow()
	c.registered.Store(true)
	r := c.refused.Load()
	if r == nil {
		return
	}
	if before == nil {
		c.readAgain.Store(true)
		return
	}
	p, err := policy.FromText([]byte(before.Text))
	if err != nil { // the previous process might have had another version
		c.readAgain.Store(true)
		c.Log.WithError(err).Warn("cannot read the policy that the previous process passed on: the policy stored on " +
			"this node stays in force")
		return
	}
	c.using.Lock()
	defer c.using.Unlock()
	c.fallBackTo(r, p, before.Source)
}
