// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// inForce is a policy and where it comes from.
type inForce struct {
	policy *policy.Policy
	source string
	origin origin
}

// origin is the kind of a policy's source. A later one has precedence.
type origin int

const (
	fromDefaults origin = iota
	fromRuntime
	fromFile // or from a file that should be there
)

func initial(given *policy.Policy) *inForce {
	if given != nil {
		return &inForce{given, "given at the start", fromFile}
	}
	p, err := policy.New(policy.Default())
	if err != nil {
		panic(fmt.Sprintf("the default configuration is not valid: %v", err))
	}
	return &inForce{p, "the defaults", fromDefaults}
}

// policy returns the policy in force.
func (p *Plugin) policy() *policy.Policy { return p.inForce.Load().policy }

// Use puts a configuration file's policy in force, for containers that are created from now on. With an error, the file
// could not be read: the policy that containers were created by stays in force. Before there were any, the policy that
// was last in force on this node goes on until the file can be read. If there is none, RDMA containers are refused.
func (p *Plugin) Use(loaded *policy.Policy, source string, err error) {
	p.use(&inForce{loaded, source, fromFile}, err)
}

// takeHandedOver puts in force what the runtime hands over, unless there is a configuration file. It treats errors as
// Use does.
func (p *Plugin) takeHandedOver(config, runtime string) {
	if config == "" {
		return
	}
	source := "the configuration that " + runtime + " hands over when it starts"
	handed, err := policy.FromText([]byte(config))
	if err != nil {
		err = fmt.Errorf("%s: %w", source, err)
	}
	p.use(&inForce{handed, source, fromRuntime}, err)
}

func (p *Plugin) use(next *inForce, err error) {
	p.using.Lock()
	defer p.using.Unlock()
	log, current := p.Log.WithField("config", next.source), p.inForce.Load()
	if p.Deployment != "" && next.origin == fromFile && err != nil {
		p.refused.Store(&refusal{err, next.source})
	}
	switch {
	case current.origin > next.origin:
		return
	case err == nil:
		p.metrics.configValid.Set(1)
		p.metrics.configLoaded.SetToCurrentTime()
		p.put(next)
		log.Info("the configuration is in force")
		return
	case current.policy.Missing() == nil && (current.origin == next.origin || !p.registration.When().IsZero()):
		log.WithError(err).Error("the configuration is refused: the last good one stays in force")
	default:
		p.goOn(next, err, log.WithError(err))
	}
	p.metrics.configValid.Set(0)
}

// asLastInForce is what the source of a policy ends with that is in force in place of a configuration that cannot be
// read.
const asLastInForce = ", as it was last in force"

// refusal is why a configuration that is read once is not in force.
type refusal struct {
	error
	source string
}

// goOn puts in force what there is in place of a configuration that cannot be read.
func (p *Plugin) goOn(next *inForce, why error, log logrus.FieldLogger) {
	err := p.goOnWithLast(next, log)
	if err == nil {
		return
	}
	if !errors.Is(err, fs.ErrNotExist) {
		log = log.WithField("last", err)
	}
	next.policy = policy.Missing(why)
	p.put(next)
	log.Error("the configuration cannot be read: until it can, RDMA containers are refused and all others are left alone")
}

// goOnWithLast puts the policy in force that was last in force on this node.
func (p *Plugin) goOnWithLast(next *inForce, log logrus.FieldLogger) error {
	last, err := p.LastInForce()
	if err != nil {
		return err
	}
	next.policy, next.source = last.Policy, strings.TrimSuffix(last.Source, asLastInForce)+asLastInForce
	p.put(next)
	log.Errorf("the configuration cannot be read: until it can, the policy that was last in force on this node goes "+
		"on, from %s", next.source)
	return nil
}

// goOnAgain reads once more what was last in force, where a configuration that is read once is refused: the process
// before may have put another policy in force since.
func (p *Plugin) goOnAgain() {
	if r := p.refused.Load(); r != nil {
		p.using.Lock()
		defer p.using.Unlock()
		next := &inForce{nil, r.source, fromFile}
		_ = p.goOnWithLast(next, p.Log.WithField("config", r.source).WithError(r)) // what is in force stays
	}
}

func (p *Plugin) put(next *inForce) {
	p.inForce.Store(next)
	p.Inventory.Want(next.policy.Wants())
	if next.policy.Missing() != nil {
		p.repair.Use(nil) // it records containers, and compares none
	} else {
		p.repair.Use(next.policy)
	}
	p.requestPublish()
}

// requestPublish makes publishAll publish the policy in force.
func (p *Plugin) requestPublish() {
	select {
	case p.publish <- struct{}{}:
	default: // it is requested already
	}
}

// publishAgain is how often the policy is published again: another plugin may have written its own, and ended.
const publishAgain = 30 * time.Second

// publishAll publishes the policy in force on request, and every publishAgain, until the context is done.
func (p *Plugin) publishAll(ctx context.Context) {
	again := time.NewTicker(publishAgain)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.publish:
		case <-again.C:
			if p.policy().Missing() != nil {
				p.goOnAgain()
			}
		}
		p.publishNow(false)
	}
}

// publishNow writes the policy in force, where this plugin is the registered one. It writes it whoever wrote it before
// if this plugin has registered since it was last written.
func (p *Plugin) publishNow(registered bool) {
	p.publishing.Lock()
	defer p.publishing.Unlock()
	p.unwritten = p.unwritten || registered
	current, write := p.inForce.Load(), p.Publisher.Keep
	if current.policy.Missing() != nil {
		return
	}
	p.keep(current.policy)
	switch {
	case p.unwritten:
		write = p.Publisher.Write
	case !p.Registered():
		return
	}
	err := write(current.policy, current.source)
	p.unwritten = p.unwritten && err != nil
	if err != nil && p.throttle.due(err.Error()) {
		p.Log.WithError(err).Warn("the policy in force cannot be written for rdma-spec: its status and repair need " +
			"--config here")
	}
}

// keep keeps the policy in force, where this plugin is the registered one. publishing must be held.
func (p *Plugin) keep(current *policy.Policy) {
	if p.Keep == nil || current == p.kept || current.Text() == nil || !p.unwritten && !p.Registered() {
		return
	}
	err := p.Keep(current.Text())
	if err == nil {
		p.kept = current
	} else if p.throttle.due(err.Error()) {
		p.Log.WithError(err).Warn("the policy in force cannot be kept: after a reboot, a configuration that cannot be read " +
			"leaves RDMA containers refused")
	}
}
