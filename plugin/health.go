// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"fmt"
	"time"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// Registered reports whether the runtime currently calls the plugin for containers.
func (p *Plugin) Registered() bool { return p.registration.Registered() }

// Ready returns the plugin's state if the plugin is ready for the runtime's requests, or ready to take over the
// connection of a registered plugin. If the plugin is not ready, the error explains why.
func (p *Plugin) Ready() (state string, err error) {
	switch {
	case p.Registered():
		state = "registered"
	case p.registration.Behind():
		if _, _, err := p.facts.HCAs(); err != nil {
			return "", err
		}
		state = "waiting behind a registered plugin"
	case p.registration.Out() != nil:
		state = p.registration.Out().Error()
	default:
		return "", errors.New("not registered with the runtime")
	}
	if err := p.policy().Missing(); err != nil {
		return "", fmt.Errorf("RDMA containers are refused, because the plugin has no configuration: %w", err)
	}
	// A registered plugin with an invalid configuration is ready. If the plugin were not ready, the DaemonSet's controller
	// would delete the old pod before a new pod could take over the connection.
	if r := p.config.Refused(); r != nil && !p.Registered() {
		return "", fmt.Errorf("%s; the configuration is invalid: %w", state, r)
	}
	return state, p.Inventory.NumbersUnknown()
}

// aliveWithin is the longest time for a decision. A plugin that takes longer counts as hung.
const aliveWithin = 5 * time.Second

// answersWithin returns the longest time that the runtime may wait for a response. After this time, the plugin counts
// as hung. The result is at least the runtime's timeout, since the edit of a stored spec can take most of the runtime's
// timeout.
func (p *Plugin) answersWithin() time.Duration {
	return max(aliveWithin, p.registration.RequestTimeout())
}

// harmless is a container that is not an RDMA container under any policy.
var harmless = policy.Container{Devices: []policy.Device{{Path: "/dev/null", Type: "c", Major: 1, Minor: 3}}}

// Alive returns nil if the plugin responds to requests. If the plugin does not respond, the error names the part that
// hangs. As a test, Alive makes a decision about a container that does not exist, without the kubelet. Concurrent
// callers share one decision.
func (p *Plugin) Alive() error {
	if waiting := p.registration.Waiting(); waiting > p.answersWithin() {
		return fmt.Errorf("the runtime has been waiting %s for a response", waiting.Round(time.Second))
	}
	decided := p.checks.DoChan("", func() (any, error) { return p.policy().Decide(harmless, p.facts), nil })
	select {
	case <-decided:
		return nil
	case <-time.After(aliveWithin):
		return fmt.Errorf("the plugin did not make a decision about a container within %s", aliveWithin)
	}
}
