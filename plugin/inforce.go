// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"time"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// inForce is a policy and where it came from.
type inForce struct {
	policy *policy.Policy
	source string
	file   bool // a configuration file says it, or should
}

func initial(given *policy.Policy) *inForce {
	if given != nil {
		return &inForce{policy: given, source: "given at the start", file: true}
	}
	p, err := policy.New(policy.Default())
	if err != nil {
		panic(fmt.Sprintf("the default configuration is not valid: %v", err))
	}
	return &inForce{policy: p, source: "the defaults"}
}

// policy gives the policy in force.
func (p *Plugin) policy() *policy.Policy { return p.inForce.Load().policy }

// Use puts a configuration file's policy in force, for containers that are created from now on. With an error, the file could not be
// read: the last policy stays in force, and where there was none, RDMA containers are refused until the file is mended.
func (p *Plugin) Use(loaded *policy.Policy, source string, err error) {
	log := p.Log.WithField("config", source)
	switch {
	case err == nil:
		p.metrics.configValid.Set(1)
		p.metrics.configLoaded.SetToCurrentTime()
		p.put(&inForce{loaded, source, true})
		log.Info("the configuration is in force")
	case p.inForce.Load().file && p.policy().Missing() == nil:
		p.metrics.configValid.Set(0)
		log.WithError(err).Error("the configuration is refused: the last good one stays in force")
	default:
		p.metrics.configValid.Set(0)
		p.put(&inForce{policy.Missing(err), source, true})
		log.WithError(err).Error("the configuration cannot be read: until it can, RDMA containers are refused and all others are left alone")
	}
}

// takeHandedOver puts in force what the runtime hands over to a plugin that it launches, unless there is a configuration file.
func (p *Plugin) takeHandedOver(config, runtime string) {
	if p.inForce.Load().file || config == "" {
		return
	}
	source := "the configuration that " + runtime + " hands over"
	handed, err := policy.FromText([]byte(config))
	if err != nil {
		p.metrics.configValid.Set(0)
		err = fmt.Errorf("%s: %w", source, err)
		handed = policy.Missing(err)
		p.Log.WithError(err).Error("the configuration cannot be read: until it is mended and the runtime restarted, RDMA containers are refused and all others are left alone")
	}
	p.put(&inForce{handed, source, false})
}

func (p *Plugin) put(next *inForce) {
	p.inForce.Store(next)
	p.repair.Use(next.policy)
	p.requestPublish()
}

// requestPublish has the policy in force published soon.
func (p *Plugin) requestPublish() {
	select {
	case p.publish <- struct{}{}:
	default: // it is requested already
	}
}

// publishAgain is the time after which the policy is published again where another plugin has written its own, and has ended.
const publishAgain = 30 * time.Second

// publishAll publishes the policy in force, whenever that is requested and now and then, until the context is done.
func (p *Plugin) publishAll(ctx context.Context) {
	if p.Publisher == nil {
		return
	}
	again := time.NewTicker(publishAgain)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.publish:
		case <-again.C:
		}
		current, write := p.inForce.Load(), p.Publisher.Keep
		switch {
		case p.anew.Swap(false):
			write = p.Publisher.Write
		case !p.Registered():
			continue
		}
		if current.policy.Missing() != nil {
			continue
		}
		if err := write(current.policy, current.source); err != nil && p.told.due(err.Error()) {
			p.Log.WithError(err).Warn("the policy in force cannot be written for rdma-spec: its status and repair need --config here")
		}
	}
}
