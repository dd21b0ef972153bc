// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package policy decides what each container may have, according to the administrator's configuration. The plugin,
// explain, status, and repair apply or show the same decision.
//
// The package takes values and returns values. Facts that cost a call, such as the node's devices and the kubelet's
// resources, are functions that Decide calls only if it has to.
//
// Each check that keeps a pod's author from getting more than the policy grants is marked as a guard. Each guard has
// rows in the attack table. A mutation run removes the guards one by one, and each removal must make some of these rows
// fail.
package policy

import (
	"errors"
	"fmt"
	"slices"
)

// Policy is a checked configuration that is ready to decide. It is immutable and safe for concurrent use.
type Policy struct {
	config   Config
	rules    []rule
	defaults rule
	missing  error  // why there is no configuration; nil if there is one
	text     []byte // the configuration's text
}

// Missing returns the policy of a node whose configuration cannot be read. It grants nothing. It refuses containers
// that have a verbs device or the annotation, since they would start without what the configuration grants them.
func Missing(why error) *Policy { return &Policy{config: Default(), missing: why} }

// Missing returns why there is no configuration; nil if there is one.
func (p *Policy) Missing() error { return p.missing }

// New checks a configuration. The error names every fault with its path, one a line.
func New(config Config) (*Policy, error) {
	config.Rules = slices.Clone(config.Rules)
	p := &Policy{config: config}
	var found problems
	p.defaults = rule{name: defaultRule, ruleValues: ruleValues{selectors: config.Inject.Selectors}}
	var err error
	p.defaults.memlock, err = parseMemlock(config.Memlock)
	found.add("memlock", err)
	p.defaults.ipcLock, err = parseIPCLock(config.IPCLock)
	found.add("ipcLock", err)
	config.Inject.check("inject", &found)
	if config.Inject.Management { // guard: management-general
		found.add("inject.management",
			errors.New("only a rule with match.namespaces can grant umad and issm: move it to such a rule"))
	}
	found.add("optIn.resources", CheckResourceGlobs(config.OptIn.Resources))
	found.add("optIn.namespaces", checkNamespaceGlobs(config.OptIn.Namespaces))
	found.add("inject.namespaces", checkNamespaceGlobs(config.Inject.Namespaces))
	found.add("optIn.deviceAnnotations", checkDeviceAnnotations(config.OptIn.DeviceAnnotations))
	found.add("optIn.mofedRuntimeHandlers", checkHandlerGlobs(config.OptIn.MOFEDRuntimeHandlers))
	found.add("skipRuntimeHandlers", checkHandlerGlobs(config.SkipRuntimeHandlers))
	named := map[string]int{}
	for i := range config.Rules {
		place := fmt.Sprintf("rules[%d]", i)
		r := p.compile(&config.Rules[i], place, &found)
		if j, twice := named[r.name]; twice {
			found.add(place+".name", fmt.Errorf("rules[%[2]d] also has the name %[1]q, so logs could not distinguish these "+
				"rules: rename one of them", r.name, j))
		}
		named[r.name] = i
		if j := slices.IndexFunc(p.rules, func(earlier rule) bool { return earlier.match.covers(r.match) }); j >= 0 { // guard: rule-shadowed
			found.add(place, fmt.Errorf("it can never match, because rules[%d] precedes it and matches the same "+
				"containers: change their order, or remove one of them", j))
		}
		p.rules = append(p.rules, r)
	}
	if err := found.join(); err != nil {
		return nil, err
	}
	return p, nil
}

// Text returns the configuration's text; nil if the policy was not made from a text. Callers must not modify it.
func (p *Policy) Text() []byte { return p.text }

// Config returns the configuration with all defaults filled in, including those of the rules' selectors.
func (p *Policy) Config() Config { return p.config }

// problems are the faults in a configuration, each with its path.
type problems []error

func (p *problems) add(place string, err error) {
	if err != nil {
		*p = append(*p, fmt.Errorf("%s: %w", place, err))
	}
}

// maxProblems bounds how many faults are reported at once. A file of another kind can have 100,000.
const maxProblems = 20

// join returns the faults as one error, one a line.
func (p problems) join() error {
	if more := len(p) - maxProblems; more > 0 {
		p = append(slices.Clone(p[:maxProblems]), fmt.Errorf("and %d more", more))
	}
	return errors.Join(p...)
}

func oneOf(value string, words ...string) error {
	if slices.Contains(words, value) {
		return nil
	}
	return fmt.Errorf("%q is not one of %v", value, words)
}
