// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package policy decides who may have what: it holds the administrator's configuration and, for each container, the one decision
// that the plugin, explain, status and repair carry out or show.
//
// It takes values and returns values. What costs a call, the node's devices and the kubelet's word on resources, comes in as
// functions that Decide calls at most once and only if it has to.
package policy

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"time"
)

// Policy is a configuration that has been checked and is ready to decide. It is immutable and safe for concurrent use.
type Policy struct {
	config      Config
	rules       []rule
	otherwise   rule
	repairEvery time.Duration
}

// rule is a Rule with its values read, and those that it does not set taken from the configuration's general ones.
type rule struct {
	name    string
	match   Match
	memlock memlock
	ipcLock ipcLock
	devices Devices
	inject  bool // the rule names devices: they are injected without being asked for
	deny    bool
	message string
}

// Word for the rule that applies where no other matches.
const defaultRule = "default"

// New checks a configuration. The error names every problem with its path, one a line.
func New(config Config) (*Policy, error) {
	p := &Policy{config: config}
	var problems []error
	report := func(place string, err error) {
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", place, err))
		}
	}
	p.otherwise = rule{name: defaultRule, devices: config.Devices}
	var err error
	p.otherwise.memlock, err = parseMemlock(config.Memlock)
	report("memlock", err)
	p.otherwise.ipcLock, err = parseIPCLock(config.IPCLock)
	report("ipcLock", err)
	report("ipcLock", p.otherwise.contradiction())
	report("devices", config.Devices.check())
	if config.Devices.Management {
		report("devices.management", errors.New("umad and issm are given by a rule with match.namespaces only, never to everybody: move it into such a rule"))
	}
	report("optIn.resources", checkGlobs(config.OptIn.Resources))
	report("optIn.annotation.namespaces", checkGlobs(config.OptIn.Annotation.Namespaces))
	report("optIn.nvidiaMOFED.runtimeHandlers", checkGlobs(config.OptIn.NVIDIAMOFED.RuntimeHandlers))
	report("optIn.onKubeletError", oneOf(config.OptIn.OnKubeletError, "skip", "fail"))
	report("skipRuntimeHandlers", checkGlobs(config.SkipRuntimeHandlers))
	report("repair.mode", oneOf(config.Repair.Mode, RepairOff, RepairReport, RepairFix))
	p.repairEvery, err = checkInterval(config.Repair.Every)
	report("repair.every", err)
	for i, r := range config.Rules {
		place := fmt.Sprintf("rules[%d]", i)
		compiled, err := p.compile(r, place)
		if err != nil {
			problems = append(problems, err)
		}
		if j := slices.IndexFunc(p.rules, func(other rule) bool { return other.name == compiled.name }); j >= 0 {
			report(place+".name", fmt.Errorf("%q is the name of rules[%d] as well: logs could not tell them apart", compiled.name, j))
		}
		p.rules = append(p.rules, compiled)
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return p, nil
}

// Modes of repair.
const (
	RepairOff    = "off"
	RepairReport = "report"
	RepairFix    = "fix"
)

// Config gives the configuration with its defaults.
func (p *Policy) Config() Config { return p.config }

// RepairEvery gives the time between two passes over the running containers.
func (p *Policy) RepairEvery() time.Duration { return p.repairEvery }

// GivesIPCLock says whether some container can get CAP_IPC_LOCK under the policy.
func (p *Policy) GivesIPCLock() bool {
	return slices.ContainsFunc(append(p.rules, p.otherwise), func(r rule) bool {
		return !r.deny && (r.ipcLock == ipcLockForce || r.ipcLock != ipcLockFalse && !r.memlock.finite())
	})
}

// NeedsResources says whether some decision under the policy can need the kubelet's word on resources.
func (p *Policy) NeedsResources() bool {
	return len(p.config.OptIn.Resources) > 0 || slices.ContainsFunc(p.rules, func(r rule) bool { return len(r.match.Resources) > 0 })
}

// compile reads a rule's values and checks them.
func (p *Policy) compile(written Rule, place string) (rule, error) {
	r := p.otherwise
	r.name, r.match, r.deny, r.message = written.Name, written.Match, written.Deny, written.Message
	if r.name == "" {
		r.name = place
	}
	var problems []error
	report := func(key string, err error) {
		if err != nil {
			problems = append(problems, fmt.Errorf("%s%s: %w", place, key, err))
		}
	}
	report(".match.namespaces", checkGlobs(r.match.Namespaces))
	report(".match.resources", checkGlobs(r.match.Resources))
	report(".match.runtimeHandlers", checkGlobs(r.match.RuntimeHandlers))
	var err error
	if written.Memlock != "" {
		r.memlock, err = parseMemlock(written.Memlock)
		report(".memlock", err)
	}
	if written.IPCLock != "" {
		r.ipcLock, err = parseIPCLock(written.IPCLock)
		report(".ipcLock", err)
		report(".ipcLock", r.contradiction())
	}
	if written.Devices != nil {
		r.devices, r.inject = *written.Devices, true
		report(".devices", r.devices.check())
	}
	report("", written.checkShape())
	return r, errors.Join(problems...)
}

// checkShape refuses rules that say two things at once, or that would let pod authors in.
func (r Rule) checkShape() error {
	m := r.Match
	grants := r.Memlock != "" || r.IPCLock != "" || r.Devices != nil
	switch {
	case r.Deny && grants:
		return errors.New("a rule that denies gives nothing: remove deny, or memlock, ipcLock and devices")
	case !r.Deny && r.Message != "":
		return errors.New("message is said to who is denied: add deny: true, or remove the message")
	case !r.Deny && len(m.Namespaces) == 0 && len(m.Resources) == 0:
		return errors.New("a rule that grants must say match.namespaces or match.resources: labels and runtime handlers are chosen by the pod's author")
	case r.Devices != nil && r.Devices.Management && len(m.Namespaces) == 0:
		return errors.New("devices.management gives umad and issm, which can disturb the whole fabric: say in match.namespaces who may have them")
	}
	return nil
}

// contradiction refuses what would look like a limit and be none.
func (r rule) contradiction() error {
	if r.ipcLock == ipcLockTrue && r.memlock.finite() {
		return errors.New("true contradicts a finite memlock, which the capability voids: write false, or force if the limit need not hold")
	}
	return nil
}

func (d Devices) check() error {
	for _, layer := range d.LinkLayers {
		if err := oneOf(layer, "InfiniBand", "Ethernet"); err != nil {
			return fmt.Errorf("linkLayers: %w", err)
		}
	}
	if err := checkGlobs(d.Names); err != nil {
		return fmt.Errorf("names: %w", err)
	}
	if err := checkGlobs(d.Netdevs); err != nil {
		return fmt.Errorf("netdevs: %w", err)
	}
	return nil
}

func checkInterval(text string) (time.Duration, error) {
	every, err := time.ParseDuration(text)
	if err != nil || every < time.Second || every > 24*time.Hour {
		return 0, fmt.Errorf("%q is no time between 1s and 24h, such as 30s", text)
	}
	return every, nil
}

func checkGlobs(globs []string) error {
	for _, g := range globs {
		if _, err := path.Match(g, ""); err != nil || g == "" {
			return fmt.Errorf("%q is no glob: write a name in which * stands for any characters but /, as in ml-* or rdma/*", g)
		}
	}
	return nil
}

func oneOf(value string, words ...string) error {
	if slices.Contains(words, value) {
		return nil
	}
	return fmt.Errorf("%q is none of %v", value, words)
}

// matchesAny says whether a name matches one of the globs. Globs have been checked: a bad one matches nothing.
func matchesAny(globs []string, name string) bool {
	return slices.ContainsFunc(globs, func(g string) bool {
		ok, err := path.Match(g, name)
		return err == nil && ok
	})
}

// matchesAnyOrAll is matchesAny, but no globs match all.
func matchesAnyOrAll(globs []string, name string) bool {
	return len(globs) == 0 || matchesAny(globs, name)
}
