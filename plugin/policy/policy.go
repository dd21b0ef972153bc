// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package policy decides who may have what: it has the administrator's configuration and makes, for each container, the
// one decision that the plugin, explain, status, and repair carry out or show.
//
// It takes values and returns values. Facts that cost a call, the node's devices and the kubelet's resources, come in
// as functions that Decide calls only if it has to.
//
// Each check that keeps a pod's author from getting more than the policy grants is marked as a guard. Each guard has
// rows in the attack table, and a run that takes the guards away one by one makes their rows fail.
package policy

import (
	"errors"
	"fmt"
	"slices"
)

// Policy is a configuration that has been checked and is ready to decide. It is immutable and safe for concurrent use.
type Policy struct {
	config   Config
	rules    []rule
	defaults rule
	missing  error  // why there is no configuration; nil where there is one
	text     []byte // that it was made from
}

// Missing makes the policy of a node whose configuration cannot be read. It gives nothing to anybody, and refuses
// containers that hold a verbs device or carry the annotation: they would start without what the configuration means
// them to have.
func Missing(why error) *Policy { return &Policy{config: Default(), missing: why} }

// Missing says why there is no configuration; nil where there is one.
func (p *Policy) Missing() error { return p.missing }

// New checks a configuration. The error names every problem with its path, one a line.
func New(config Config) (*Policy, error) {
	config.Rules = slices.Clone(config.Rules)
	p := &Policy{config: config}
	var found problems
	p.defaults = rule{name: defaultRule, gives: gives{selectors: config.Inject.Selectors}}
	var err error
	p.defaults.memlock, err = parseMemlock(config.Memlock)
	found.at("memlock", err)
	p.defaults.ipcLock, err = parseIPCLock(config.IPCLock)
	found.at("ipcLock", err)
	config.Inject.check("inject", &found)
	if config.Inject.Management { // guard: management-general
		found.at("inject.management",
			errors.New("only a rule with match.namespaces can grant umad and issm: move it to such a rule"))
	}
	found.at("optIn.resources", CheckResourceGlobs(config.OptIn.Resources))
	found.at("optIn.namespaces", checkNamespaceGlobs(config.OptIn.Namespaces))
	found.at("inject.namespaces", checkNamespaceGlobs(config.Inject.Namespaces))
	found.at("optIn.deviceAnnotations", checkDeviceAnnotations(config.OptIn.DeviceAnnotations))
	found.at("optIn.mofedRuntimeHandlers", checkHandlerGlobs(config.OptIn.MOFEDRuntimeHandlers))
	found.at("skipRuntimeHandlers", checkHandlerGlobs(config.SkipRuntimeHandlers))
	named := map[string]int{}
	for i := range config.Rules {
		place := fmt.Sprintf("rules[%d]", i)
		r := p.compile(&config.Rules[i], place, &found)
		if j, twice := named[r.name]; twice {
			found.at(place+".name", fmt.Errorf("rules[%[2]d] has the name %[1]q too: logs could not tell them "+
				"apart", r.name, j))
		}
		named[r.name] = i
		if j := slices.IndexFunc(p.rules, func(earlier rule) bool { return earlier.match.covers(r.match) }); j >= 0 { // guard: rule-shadowed
			found.at(place, fmt.Errorf("it can never match, because rules[%d] precedes it and matches the same "+
				"containers: change their order, or remove one", j))
		}
		p.rules = append(p.rules, r)
	}
	if err := found.together(); err != nil {
		return nil, err
	}
	return p, nil
}

// Text returns the configuration as it was given; nil if the policy was not made from a text. Nobody may change it.
func (p *Policy) Text() []byte { return p.text }

// Config returns the configuration with its defaults, also those of the rules' selectors.
func (p *Policy) Config() Config { return p.config }

// problems are what is wrong with a configuration, each with its path.
type problems []error

func (p *problems) at(place string, err error) {
	if err != nil {
		*p = append(*p, fmt.Errorf("%s: %w", place, err))
	}
}

// maxProblems bounds how many problems are reported at once. A file that is not a configuration at all can have a
// hundred thousand.
const maxProblems = 20

// together returns the problems as one error, one a line.
func (p problems) together() error {
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
