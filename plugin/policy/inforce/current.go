// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package inforce

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// Options are what a Current is made of. Log must be given.
type Options struct {
	// Root is the node's root, below which the policy is published and kept; empty: it is neither.
	Root string
	// Version is the process's own, for whoever reads what it publishes.
	Version string
	// Deployment is what the process belongs to and comes and goes with its configuration, which is read once; empty: the
	// configuration is followed.
	Deployment string
	// ReadOnly is true of a validator: it goes on with the last policy, and publishes and keeps none.
	ReadOnly bool
	// Policy is in force at the start; nil: the defaults are.
	Policy *policy.Policy
	// Put is called with each policy that is put in force, and Loaded with whether the last configuration is valid.
	Put    func(*policy.Policy)
	Loaded func(valid bool)
	// Registered and EverRegistered report whether the plugin is, and was, registered with the runtime.
	Registered, EverRegistered func() bool
	Log                        logrus.FieldLogger
}

// Current is the policy in force of a process: of a configuration file, of the runtime, or the defaults. Where a
// configuration cannot be read, the policy that was last in force on the node goes on. While the plugin is registered,
// Run publishes the policy for rdma-spec, and keeps it.
//
// It is safe for concurrent use. Only New and Run read and write files: a disk can stand still for seconds, and the
// runtime waits for all that is called between a connection and its answers.
type Current struct {
	Options
	now     atomic.Pointer[version]
	refused atomic.Pointer[refusal]
	last    *InForce   // the policy that was last in force, as New has read it; nil: there was none
	lastErr error      // why
	using   sync.Mutex // held while another policy is put in force

	wake       chan struct{} // receives when Run has something to do
	registered atomic.Bool   // the plugin has registered, and Run has not published the policy since
	readAgain  atomic.Bool   // Run has to read again what was last in force

	// Of Run alone:
	writer Writer
	kept   *policy.Policy  // that was kept last
	warned map[string]bool // which consequences of errors were logged
}

// version is a policy and where it comes from.
type version struct {
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

// refusal is why a configuration is not in force.
type refusal struct {
	error
	source string
	origin origin
}

// New makes a Current. It publishes nothing until Run.
func New(o Options) *Current {
	c := &Current{Options: o, wake: make(chan struct{}, 1),
		writer: Writer{Root: o.Root, Version: o.Version, Deployment: o.Deployment},
		warned: map[string]bool{}}
	c.last, c.lastErr = c.readLast()
	if o.Policy != nil {
		c.put(&version{o.Policy, "passed at startup", fromFile})
		return c
	}
	p, err := policy.New(policy.Default())
	if err != nil {
		panic(fmt.Sprintf("the default configuration is invalid: %v", err))
	}
	c.put(&version{p, "the defaults", fromDefaults})
	return c
}

// Policy returns the policy in force.
func (c *Current) Policy() *policy.Policy { return c.now.Load().policy }

// Refused returns why a configuration that is read once is not in force; nil where it is.
func (c *Current) Refused() error {
	if r := c.refused.Load(); r != nil {
		return r
	}
	return nil
}

// Use puts a configuration file's policy in force, for containers that are created from now on. With an error, the file
// could not be read: the policy that containers were created by stays in force. Before there were any, the policy that
// was last in force on this node goes on until the file can be read. If there is none, RDMA containers are refused.
func (c *Current) Use(loaded *policy.Policy, source string, err error) {
	c.prefer(&version{loaded, source, fromFile}, err)
}

// HandedOver puts in force what the runtime hands over, unless there is a configuration file. It treats errors as Use
// does.
func (c *Current) HandedOver(config, runtime string) {
	if config == "" {
		return
	}
	source := "the configuration that " + runtime + " hands over when it starts"
	handed, err := policy.FromText([]byte(config))
	if err != nil {
		err = fmt.Errorf("%s: %w", source, err)
	}
	c.prefer(&version{handed, source, fromRuntime}, err)
}

// prefer puts a policy in force, unless the one in force comes from where counts more, or it could not be read.
func (c *Current) prefer(next *version, err error) {
	c.using.Lock()
	defer c.using.Unlock()
	log := c.Log.WithField("config", next.source)
	current := c.now.Load()
	if c.Deployment != "" && next.origin == fromFile && err != nil {
		c.refused.Store(&refusal{err, next.source, next.origin})
	}
	if current.origin > next.origin {
		return
	}
	c.Loaded(err == nil)
	switch {
	case err == nil:
		c.put(next)
		log.Info("the configuration is in force")
	case current.policy.Missing() == nil && (current.origin == next.origin || c.EverRegistered()):
		log.WithError(err).Error("invalid configuration: the last valid one stays in force")
	default:
		c.goOn(next, err, log.WithError(err))
	}
}

// AsLast is what the source of a policy ends with that is in force in place of a configuration that cannot be read.
const AsLast = ", as it was last in force"

// goOn puts in force what there is in place of a configuration that cannot be read.
func (c *Current) goOn(next *version, why error, log logrus.FieldLogger) {
	if c.lastErr == nil {
		c.goOnWith(&refusal{why, next.source, next.origin}, c.last.Policy, c.last.Source)
		return
	}
	if !errors.Is(c.lastErr, fs.ErrNotExist) {
		log = log.WithField("last", c.lastErr)
	}
	next.policy = policy.Missing(why)
	c.put(next)
	log.Error("cannot read the configuration: until it can be read, RDMA containers are refused, and others are " +
		"left as they are")
}

// goOnWith puts the policy in force that was last in force on this node, in place of a configuration.
func (c *Current) goOnWith(refused *refusal, last *policy.Policy, source string) {
	source = strings.TrimSuffix(source, AsLast) + AsLast
	c.put(&version{last, source, refused.origin})
	c.Log.WithField("config", refused.source).WithError(refused.error).WithField("policy", source).Error(
		"cannot read the configuration: until it can be read, the policy last in force on this node stays in force")
}

// readLast reads the policy that was last in force on this node.
func (c *Current) readLast() (*InForce, error) {
	switch {
	case c.Root == "":
		return nil, fs.ErrNotExist
	case c.Deployment != "":
		return c.keeper().Read()
	}
	return Last(c.Root)
}

func (c *Current) keeper() Kept { return Kept{Root: c.Root, Deployment: c.Deployment} }

func (c *Current) put(next *version) {
	c.now.Store(next)
	c.Put(next.policy)
	c.runNow()
}

func (c *Current) runNow() {
	select {
	case c.wake <- struct{}{}:
	default: // it is requested already
	}
}

// Left is what a process leaves of its policy to the one that takes its connection over.
type Left struct {
	Source string `json:"source"`
	Text   string `json:"text"`
}

// Leave returns the policy in force for the next process; nil where there is none that has a text.
func (c *Current) Leave() *Left {
	current := c.now.Load()
	if current.policy.Missing() != nil || current.policy.Text() == nil {
		return nil
	}
	return &Left{current.source, string(current.policy.Text())}
}

// TookOver is called when the plugin has taken a connection over, with what the process before has left. Where the
// configuration of this one is refused, that policy goes on.
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
	if err != nil { // it is of another version
		c.readAgain.Store(true)
		c.Log.WithError(err).Warn("cannot read the previous process's policy: the stored one stays in force")
		return
	}
	c.using.Lock()
	defer c.using.Unlock()
	c.goOnWith(r, p, before.Source)
}

// Registers is called when the plugin registers: Run publishes the policy in place of whoever registered before. Where
// the configuration is refused, another process may have put another policy in force since this one has read it.
func (c *Current) Registers() {
	c.registered.Store(true)
	c.readAgain.Store(c.refused.Load() != nil)
	c.runNow()
}

// again is how often the policy is published again: another plugin may have written its own, and ended.
const again = 30 * time.Second

// Run publishes and keeps the policy when another one is in force, and now and then, until the context is done.
func (c *Current) Run(ctx context.Context) {
	tick := time.NewTicker(again)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		case <-tick.C:
		}
		if c.readAgain.Swap(false) || c.Policy().Missing() != nil {
			c.goOnAgain()
		}
		c.publish()
	}
}

// goOnAgain reads once more what was last in force, where a configuration that is read once is refused.
func (c *Current) goOnAgain() {
	r := c.refused.Load()
	if r == nil {
		return
	}
	before := c.now.Load()
	last, err := c.readLast()
	c.using.Lock()
	defer c.using.Unlock()
	if err == nil && c.now.Load() == before { // else what is in force is newer
		c.goOnWith(r, last.Policy, last.Source)
	}
}

// Close ends what was published, as the end of the process does.
func (c *Current) Close() { c.writer.Close() }

// publish writes the policy in force, where this plugin is the registered one. It writes it whoever wrote it before if
// this plugin has registered since it was last written.
func (c *Current) publish() {
	current := c.now.Load()
	first := c.registered.Load()
	if c.ReadOnly || c.Root == "" || current.policy.Missing() != nil || !first && !c.Registered() {
		return
	}
	write := c.writer.Keep
	if first {
		write = c.writer.Write
	}
	err := write(current.policy, current.source)
	if err == nil && first {
		c.registered.Store(false)
	}
	c.warn(err, "cannot write the policy in force for rdma-spec: status and repair need --config on this node")
	c.keep(current.policy)
}

// keep keeps the policy in force, for a process of the deployment that cannot read its configuration.
func (c *Current) keep(current *policy.Policy) {
	if c.Deployment == "" || current == c.kept || current.Text() == nil {
		return
	}
	err := c.keeper().Write(current.Text())
	if err == nil {
		c.kept = current
	}
	c.warn(err, "cannot store the policy in force: if the configuration cannot be read after a reboot, RDMA "+
		"containers are refused")
}

// warn logs an error, once until what it is about succeeds.
func (c *Current) warn(err error, consequence string) {
	if err != nil && !c.warned[consequence] {
		c.Log.WithError(err).Warn(consequence)
	}
	c.warned[consequence] = err != nil
}
