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

// Options are the options of a Current. Log is required.
type Options struct {
	// Root is the node's root directory, below which Run publishes and stores the policy. If Root is empty, Run does
	// neither.
	Root string
	// Version is the process's version, for programs that read the published policy.
	Version string
	// Deployment is the deployment to which the process belongs. A deployment replaces its processes when the
	// configuration changes, so each process reads the configuration only once. If Deployment is empty, the process
	// reloads the configuration.
	Deployment string
	// ReadOnly is true for a validator, which uses the last policy in force, and neither publishes nor stores a policy.
	ReadOnly bool
	// Policy is the policy in force at startup; nil means the defaults.
	Policy *policy.Policy
	// Put is called with each policy that is put in force. Loaded is called after each load of a configuration, and
	// reports whether the configuration is valid.
	Put    func(*policy.Policy)
	Loaded func(valid bool)
	// Registered and EverRegistered report whether the plugin is registered with the runtime, and whether the plugin ever
	// was registered.
	Registered, EverRegistered func() bool
	Log                        logrus.FieldLogger
}

// Current is the policy that is in force in a process. The policy comes from a configuration file, the runtime, or the
// defaults. If the configuration cannot be read, the policy that was last in force on the node stays in force. While
// the plugin is registered, Run publishes the policy for rdma-spec, and stores the policy.
//
// Current is safe for concurrent use. Only New and Run read and write files, because a disk can block for seconds while
// the runtime waits for the plugin's answers.
type Current struct {
	Options
	now     atomic.Pointer[version]
	refused atomic.Pointer[refusal]
	last    *InForce   // the policy that was last in force when New was called; nil if New could not read it
	lastErr error      // the reason why last is nil
	using   sync.Mutex // held while another policy is put in force

	wake       chan struct{} // receives a value when Run must publish the policy
	registered atomic.Bool   // the plugin registered, and Run has not published the policy since then
	readAgain  atomic.Bool   // Run must reread the policy that was last in force

	// Only Run uses these:
	writer Writer
	kept   *policy.Policy  // the policy that was stored last
	warned map[string]bool // for each consequence, whether its current error was logged
}

// version is a policy together with its source.
type version struct {
	policy *policy.Policy
	source string
	origin origin
}

// origin is the kind of a policy's source. Later kinds take precedence.
type origin int

const (
	fromDefaults origin = iota
	fromRuntime
	fromFile // a configuration file, which might be missing
)

// refusal is the reason why a configuration is not in force.
type refusal struct {
	error
	source string
	origin origin
}

// New returns a Current, which publishes nothing until Run is called.
func New(o Options) *Current {
	c := &Current{Options: o, wake: make(chan struct{}, 1),
		writer: Writer{Root: o.Root, Version: o.Version, Deployment: o.Deployment},
		warned: map[string]bool{}}
	c.last, c.lastErr = c.readLast()
	if o.Policy != nil {
		c.putInForce(&version{o.Policy, "passed at startup", fromFile})
		return c
	}
	p, err := policy.New(policy.Default())
	if err != nil {
		panic(fmt.Sprintf("the default configuration is invalid: %v", err))
	}
	c.putInForce(&version{p, "the defaults", fromDefaults})
	return c
}

// Policy returns the policy in force.
func (c *Current) Policy() *policy.Policy { return c.now.Load().policy }

// Refused returns the reason why the configuration of a deployment's process is not in force, or nil if the
// configuration is in force.
func (c *Current) Refused() error {
	if r := c.refused.Load(); r != nil {
		return r
	}
	return nil
}

// Use puts the policy of a configuration file in force for containers that are created from now on. An error means that
// the file could not be read. If containers might have been created under the current policy, the current policy stays
// in force. If no container was created under the current policy yet, the policy that was last in force on this node is
// used until the file can be read. If the node has no such policy, RDMA containers are refused.
func (c *Current) Use(loaded *policy.Policy, source string, err error) {
	c.prefer(&version{loaded, source, fromFile}, err)
}

// prefer puts a policy in force, unless the policy could not be read, or the source of the current policy takes
// precedence.
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
		c.putInForce(next)
		log.Info("the configuration is in force")
	case current.policy.Missing() == nil && (current.origin == next.origin || c.EverRegistered()):
		log.WithError(err).Error("invalid configuration: the last valid configuration stays in force")
	default:
		c.fallBack(next, err, log.WithError(err))
	}
}

// AsLast is the suffix of a policy's source if the policy is in force only because a configuration cannot be read.
const AsLast = ", as it was last in force"

// fallBack puts the best available policy in force if a configuration cannot be read.
func (c *Current) fallBack(next *version, why error, log logrus.FieldLogger) {
	if c.lastErr == nil {
		c.fallBackTo(&refusal{why, next.source, next.origin}, c.last.Policy, c.last.Source)
		return
	}
	if !errors.Is(c.lastErr, fs.ErrNotExist) {
		log = log.WithField("last", c.lastErr)
	}
	next.policy = policy.Missing(why)
	c.putInForce(next)
	log.Error("cannot read the configuration: until it can be read, the plugin refuses RDMA containers, and does not " +
		"change other containers")
}

// fallBackTo restores the policy that was last in force on this node, because a configuration cannot be read.
func (c *Current) fallBackTo(refused *refusal, last *policy.Policy, source string) {
	source = strings.TrimSuffix(source, AsLast) + AsLast
	c.putInForce(&version{last, source, refused.origin})
	c.Log.WithField("config", refused.source).WithError(refused.error).WithField("policy", source).Error(
		"cannot read the configuration: until it can be read, the node's last policy stays in force")
}

// readLast reads the policy that was last in force on this node.
func (c *Current) readLast() (*InForce, error) {
	switch {
	case c.Root == "":
		return nil, fs.ErrNotExist
	case c.Deployment != "":
		return c.keptPolicy().Read()
	}
	return Last(c.Root)
}

func (c *Current) keptPolicy() Kept { return Kept{Root: c.Root, Deployment: c.Deployment} }

func (c *Current) putInForce(next *version) {
	c.now.Store(next)
	c.Put(next.policy)
	c.runNow()
}

func (c *Current) runNow() {
	select {
	case c.wake <- struct{}{}:
	default: // a wake-up of Run is already pending
	}
}

// Registers must be called when the plugin registers. Run then replaces the policy that another plugin published. If
// the configuration is refused, Run also rereads the policy that was last in force, because another process might have
// changed this policy.
func (c *Current) Registers() {
	c.registered.Store(true)
	c.readAgain.Store(c.refused.Load() != nil)
	c.runNow()
}

// again is the interval at which Run republishes the policy, because another plugin might have published its own policy
// and exited.
const again = 30 * time.Second

// Run publishes and stores the policy when it changes, and periodically, until the context is done.
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
			c.fallBackAgain()
		}
		c.publish()
	}
}

// fallBackAgain rereads the policy that was last in force, if the configuration of a deployment's process is refused.
func (c *Current) fallBackAgain() {
	r := c.refused.Load()
	if r == nil {
		return
	}
	before := c.now.Load()
	last, err := c.readLast()
	c.using.Lock()
	defer c.using.Unlock()
	if err == nil && c.now.Load() == before { // if the policies differ, the policy in force is newer
		c.fallBackTo(r, last.Policy, last.Source)
	}
}

// Close withdraws the published policy. The end of the process also withdraws the policy.
func (c *Current) Close() { c.writer.Close() }

// publish writes the policy in force if this plugin is the registered plugin. After a new registration, publish also
// replaces a policy that another plugin wrote.
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
	c.warn(err, "cannot write the file from which rdma-spec reads the policy in force: on this node, rdma-spec status "+
		"and rdma-spec repair need --config")
	c.keep(current.policy)
}

// keep stores the policy in force. A later process of the deployment uses the stored policy if the process cannot read
// its configuration.
func (c *Current) keep(current *policy.Policy) {
	if c.Deployment == "" || current == c.kept || current.Text() == nil {
		return
	}
	err := c.keptPolicy().Write(current.Text())
	if err == nil {
		c.kept = current
	}
	c.warn(err, "cannot store the policy in force: if the configuration cannot be read after a reboot, RDMA "+
		"containers are refused")
}

// warn logs an error only once, until the operation succeeds.
func (c *Current) warn(err error, consequence string) {
	if err != nil && !c.warned[consequence] {
		c.Log.WithError(err).Warn(consequence)
	}
	c.warned[consequence] = err != nil
}
