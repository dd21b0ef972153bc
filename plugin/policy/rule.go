// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"unicode"
)

// rule is a Rule with parsed values. For keys that the Rule omits, rule contains the configuration's general values.
type rule struct {
	name  string
	match Match
	ruleValues
}

// ruleValues are the values that apply to the containers that a rule matches.
type ruleValues struct {
	memlock   memlock
	ipcLock   ipcLock
	selectors Selectors
	always    bool // HCAs are injected even without a request
}

// defaultRule is the name of the general values, which apply if no rule matches.
const defaultRule = "default"

// maxRuleName is the maximum length of a rule's name in bytes. Rule names appear in logs and metrics.
const maxRuleName = 63

// compile parses and checks a rule's values, and fills in the general selectors that the rule omits.
func (p *Policy) compile(written *Rule, place string, found *problems) rule {
	r := rule{name: cmp.Or(written.Name, place), match: written.Match, ruleValues: p.defaults.ruleValues}
	found.add(place+".name", checkRuleName(written.Name))
	found.add(place+".match.namespaces", checkNamespaceGlobs(r.match.Namespaces))
	found.add(place+".match.resources", CheckResourceGlobs(r.match.Resources))
	var err error
	if written.Memlock != "" {
		r.memlock, err = parseRuleMemlock(written.Memlock)
		found.add(place+".memlock", err)
	}
	if written.IPCLock != "" {
		r.ipcLock, err = parseIPCLock(written.IPCLock)
		found.add(place+".ipcLock", err)
	}
	if written.Inject != nil {
		written.Inject = &RuleInject{written.Inject.withDefaults(p.config.Inject.Selectors), written.Inject.Always}
		written.Inject.check(place+".inject", found)
		r.selectors = written.Inject.Selectors
		r.always = written.Inject.Always
	}
	found.add(place, written.checkShape())
	return r
}

// checkShape rejects rules that match more containers than they appear to match, or that give pod authors more than the
// policy should give.
func (r Rule) checkShape() error {
	m := r.Match
	switch {
	case m.Namespaces != nil && len(m.Namespaces) == 0 || m.Resources != nil && len(m.Resources) == 0: // guard: match-empty
		return errors.New("an empty list in match would match everything: add entries to the list, or remove the list")
	case len(m.Namespaces) == 0 && len(m.Resources) == 0: // guard: match-nothing
		return errors.New("the rule has neither match.namespaces nor match.resources: add one of these keys, or change " +
			"the general values, which apply to all other containers")
	case r.Inject != nil && r.Inject.Management && len(m.Namespaces) == 0: // guard: management-scope
		return errors.New("inject.management grants umad and issm devices, with which a container can disrupt the whole " +
			"fabric: limit the rule with match.namespaces")
	}
	return nil
}

// Doubts returns warnings about settings that are valid but probably unintended. These settings slow down containers
// without RDMA, or have no effect.
func (p *Policy) Doubts() (all []string) {
	const inVain = "ipcLock: requested does not grant IPC_LOCK if memlock is limited, because the capability would " +
		"override the limit: write ipcLock: false"
	if p.defaults.ipcLock == ipcLockRequested && !p.defaults.memlock.unlimited() {
		all = append(all, inVain)
	}
	for i, r := range p.config.Rules {
		if r.IPCLock == "requested" && !p.rules[i].memlock.unlimited() {
			all = append(all, fmt.Sprintf("rules[%d].%s", i, inVain))
		}
		if len(r.Match.Resources) > 0 && coverGlobs(r.Match.Namespaces, []string{"*"}) {
			all = append(all, fmt.Sprintf("rules[%d].match: the rule matches resources in all namespaces, so the creation of "+
				"every container on the node waits for the kubelet: to limit the rule, set match.namespaces", i))
		}
	}
	if len(p.config.OptIn.Resources) > 0 {
		all = append(all, "optIn.resources is set, so the creation of every container on the node waits for the "+
			"kubelet: list the resources in a rule instead, with the namespaces that use them")
	}
	return all
}

// covers reports whether a rule certainly matches every container that a later rule matches. One glob of the earlier
// rule must cover each glob of the later rule. If the later rule omits namespaces or resources, the earlier rule must
// also omit them.
func (m Match) covers(later Match) bool {
	return len(m.Namespaces)+len(m.Resources) > 0 && coverGlobs(m.Namespaces, later.Namespaces) &&
		coverGlobs(m.Resources, later.Resources)
}

// withDefaults returns the selectors of a rule. If the rule does not set a selector, the general selector applies. An
// empty list counts as set.
func (s Selectors) withDefaults(general Selectors) Selectors {
	s.Names = orDefault(s.Names, general.Names)
	s.Functions = orDefault(s.Functions, general.Functions)
	s.LinkLayers = orDefault(s.LinkLayers, general.LinkLayers)
	s.Netdevs = orDefault(s.Netdevs, general.Netdevs)
	s.NUMANodes = orDefault(s.NUMANodes, general.NUMANodes)
	return s
}

// orDefault returns the list, or the general list if the list is not set.
func orDefault[T any](list, general []T) []T {
	if list == nil {
		return general
	}
	return list
}

func (s Selectors) check(place string, found *problems) {
	found.add(place+".names", checkNameGlobs(s.Names))
	if len(s.Names) == 0 {
		found.add(place+".names", errors.New("an empty list selects no HCA: write \"*\" for all, or remove the list"))
	}
	if len(s.Functions) == 0 {
		found.add(place+".functions",
			errors.New("an empty list selects no HCA: write physical, virtual, or scalable, or remove the list"))
	}
	for i, function := range s.Functions {
		found.add(fmt.Sprintf("%s.functions[%d]", place, i), oneOf(function, "physical", "virtual", "scalable"))
	}
	for i, layer := range s.LinkLayers {
		found.add(fmt.Sprintf("%s.linkLayers[%d]", place, i), oneOf(layer, "InfiniBand", "Ethernet"))
	}
	found.add(place+".netdevs", checkNameGlobs(s.Netdevs))
	for i, n := range s.NUMANodes {
		if n < -1 {
			found.add(fmt.Sprintf("%s.numaNodes[%d]", place, i),
				fmt.Errorf("%d is not a NUMA node: write 0 or more, or -1 for HCAs without a NUMA node", n))
		}
	}
}

// checkRuleName rejects names that would break log lines or mislead readers.
func checkRuleName(name string) error {
	if name == defaultRule {
		return fmt.Errorf("logs use %q for the values that apply if no rule matches: choose another name", defaultRule)
	}
	if len(name) > maxRuleName {
		return fmt.Errorf("the name is %d bytes long: use at most %d bytes", len(name), maxRuleName)
	}
	if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
		return fmt.Errorf("%+q contains an unprintable character: write one line of printable text", name)
	}
	return nil
}
