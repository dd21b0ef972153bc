// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"fmt"
	"time"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// Registered reports whether the runtime calls the plugin for containers now.
func (p *Plugin) Registered() bool { return p.registration.Registered() }

// Ready returns what the plugin is ready for: the runtime's requests, or taking over the connection of a registered
// plugin. The error says why it is not ready.
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
		return "", fmt.Errorf("no configuration, so RDMA containers are refused: %w", err)
	}
	// A registered plugin is ready even then: a DaemonSet's controller deletes an old pod that is not ready before a new
	// one can take over.
	if r := p.config.Refused(); r != nil && !p.Registered() {
		return "", fmt.Errorf("%s; the configuration is invalid: %w", state, r)
	}
	return state, p.Inventory.NumbersUnknown()
}

// aliveWithin is how long a decision may take before the plugin is considered hung.
const aliveWithin = 5 * time.Second

// answersWithin is how long the runtime may wait for a response before the plugin is considered hung. It is at least
// the runtime's timeout, since the edit of a stored spec may take most of that.
func (p *Plugin) answersWithin() time.Duration {
	return max(aliveWithin, p.registration.RequestTimeout())
}

// harmless is a container that is never an RDMA container, whatever the policy.
var harmless = policy.Container{Devices: []policy.Device{{Path: "/dev/null", Type: "c", Major: 1, Minor: 3}}}

// Alive returns nil if the plugin responds to requests; otherwise, an error that says what hangs. It makes a decision
// about a container that does not exist, as requests do, but without the kubelet. Concurrent callers share one
// decision.
func (p *Plugin) Alive() error {
	if waiting := p.registration.Waiting(); waiting > p.answersWithin() {
		return fmt.Errorf("the runtime has been waiting for a response for %s", waiting.Round(time.Second))
	}
	decided := p.checks.DoChan("", func() (any, error) { return p.policy().Decide(harmless, p.facts), nil })
	select {
	case <-decided:
		return nil
	case <-time.After(aliveWithin):
		return fmt.Errorf("no decision about a container within %s", aliveWithin)
	}
}
