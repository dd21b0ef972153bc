// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package policy determines each container's grant according to the administrator's configuration. The plugin and the
// commands explain, status, and repair use the same decision.
//
// A decision depends only on the values that are passed to Decide. Facts that are expensive to query, such as the
// node's devices and the kubelet's resources, are passed as functions. Decide calls these functions only if the
// decision depends on them.
//
// Each check that prevents a pod's author from getting more than the policy grants is marked as a guard. The attack
// table contains at least one row for each guard. The mutation tests remove the guards one by one. After each removal,
// the guard's rows must fail.
package policy

import (
	"errors"
	"fmt"
	"slices"
)

// Policy is a valid configuration with parsed values. A Policy is immutable and safe for concurrent use.
type Policy struct {
	config   Config
	rules    []rule
	defaults rule
	missing  error  // the reason why the configuration cannot be read; nil if the configuration was read
	text     []byte // the text of the configuration
}

// Missing returns the policy of a node whose configuration cannot be read. The policy grants nothing. The policy
// refuses containers that have a verbs device or the annotation, because these containers would start without the grant
// that the configuration specifies.
func Missing(why error) *Policy { return &Policy{config: Default(), missing: why} }

// Missing returns the reason why the configuration cannot be read, or nil if the configuration was read.
func (p *Policy) Missing() error { return p.missing }

// New checks a configuration and returns its Policy. The error contains a line for each fault, with the path of the
// key.
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
			errors.New("only a rule with match.namespaces can grant umad and issm devices: move this key to such a rule"))
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
			found.add(place+".name", fmt.Errorf("rules[%[2]d] also has the name %[1]q, so the two rules could not be told "+
				"apart in a log: rename one of them", r.name, j))
		}
		named[r.name] = i
		if j := slices.IndexFunc(p.rules, func(earlier rule) bool { return earlier.match.covers(r.match) }); j >= 0 { // guard: rule-shadowed
			found.add(place, fmt.Errorf("the rule can never match, because rules[%d] comes first and matches the same "+
				"containers: swap the two rules, or remove one", j))
		}
		p.rules = append(p.rules, r)
	}
	if err := found.join(); err != nil {
		return nil, err
	}
	return p, nil
}

// Text returns the text of the configuration, or nil if the policy was created without a text. Callers must not modify
// the text.
func (p *Policy) Text() []byte { return p.text }

// Config returns the configuration with all defaults filled in, including the defaults of the rules' selectors.
func (p *Policy) Config() Config { return p.config }

// problems are the faults in a configuration. Each error contains the path of the key.
type problems []error

func (p *problems) add(place string, err error) {
	if err != nil {
		*p = append(*p, fmt.Errorf("%s: %w", place, err))
	}
}

// maxProblems is the maximum number of faults that an error contains. A file that is not a configuration can contain
// 100,000 faults.
const maxProblems = 20

// join returns one error that contains a line for each fault.
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
