// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"unicode"
)

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

// defaultRule is what the general values are called as a rule: it applies where no other matches.
const defaultRule = "default"

// Bounds of what an administrator writes for logs, metrics and the people who are denied, in bytes.
const (
	maxRuleName    = 63
	maxRuleMessage = 500
)

// compile reads a rule's values and checks them, and fills in the devices' selectors that it leaves to the general ones.
func (p *Policy) compile(written *Rule, place string, found *problems) rule {
	r := p.otherwise
	r.name, r.match, r.deny, r.message = written.Name, written.Match, written.Deny, written.Message
	found.at(place+".name", checkText(r.name, maxRuleName))
	found.at(place+".message", checkText(r.message, maxRuleMessage))
	switch r.name {
	case "":
		r.name = place
	case defaultRule:
		found.at(place+".name", fmt.Errorf("%q is what the general values are called in logs: choose another name", defaultRule))
	}
	found.at(place+".match.namespaces", checkNameGlobs(r.match.Namespaces))
	found.at(place+".match.resources", checkResourceGlobs(r.match.Resources))
	found.at(place+".match.runtimeHandlers", checkNameGlobs(r.match.RuntimeHandlers))
	var err error
	if written.Memlock != "" {
		r.memlock, err = parseMemlock(written.Memlock)
		found.at(place+".memlock", err)
	}
	if written.IPCLock != "" {
		r.ipcLock, err = parseIPCLock(written.IPCLock)
		found.at(place+".ipcLock", err)
		found.at(place+".ipcLock", r.contradiction())
	}
	if written.Devices != nil {
		devices := written.Devices.or(p.config.Devices)
		devices.check(place+".devices", found)
		written.Devices, r.devices, r.inject = &devices, devices, true
	}
	found.at(place, written.checkShape())
	return r
}

// checkShape refuses rules that say two things at once, that match more than they seem to, or that would let pod authors in.
func (r Rule) checkShape() error {
	m := r.Match
	grants := r.Memlock != "" || r.IPCLock != "" || r.Devices != nil
	switch {
	case m.hasEmptyList():
		return errors.New("an empty list in match would match everything: write what it shall match, or remove it")
	case r.Deny && grants:
		return errors.New("a rule that denies gives nothing: remove deny, or memlock, ipcLock and devices")
	case !r.Deny && r.Message != "":
		return errors.New("message is said to who is denied: add deny: true, or remove the message")
	case !r.Deny && len(m.Namespaces) == 0 && len(m.Resources) == 0: // guard: grant-scope
		return errors.New("a rule that grants must say match.namespaces or match.resources: labels and runtime handlers are chosen by the pod's author")
	case r.Devices != nil && r.Devices.Management && len(m.Namespaces) == 0: // guard: management-scope
		return errors.New("devices.management gives umad and issm, which can disturb the whole fabric: say in match.namespaces who may have them")
	}
	return nil
}

func (m Match) hasEmptyList() bool {
	for _, list := range [][]string{m.Namespaces, m.Resources, m.RuntimeHandlers} {
		if list != nil && len(list) == 0 {
			return true
		}
	}
	return m.Labels != nil && len(m.Labels) == 0
}

// contradiction refuses what would look like a limit and be none.
func (r rule) contradiction() error {
	if r.ipcLock == ipcLockTrue && r.memlock.finite() && r.memlock != (memlock{}) {
		return errors.New("true contradicts a finite memlock, which the capability voids: write false, or force if the limit need not hold")
	}
	return nil
}

func (r rule) givesIPCLock() bool {
	return !r.deny && (r.ipcLock == ipcLockForce || r.ipcLock != ipcLockFalse && !r.memlock.finite())
}

// or gives the selectors with what they do not say taken from general ones. An empty list says something.
func (s Devices) or(general Devices) Devices {
	if s.Names == nil {
		s.Names = general.Names
	}
	if s.LinkLayers == nil {
		s.LinkLayers = general.LinkLayers
	}
	if s.Netdevs == nil {
		s.Netdevs = general.Netdevs
	}
	if s.NUMANodes == nil {
		s.NUMANodes = general.NUMANodes
	}
	return s
}

func (s Devices) check(place string, found *problems) {
	found.at(place+".names", checkNameGlobs(s.Names))
	for i, layer := range s.LinkLayers {
		found.at(fmt.Sprintf("%s.linkLayers[%d]", place, i), oneOf(layer, "InfiniBand", "Ethernet"))
	}
	found.at(place+".netdevs", checkNameGlobs(s.Netdevs))
	for i, n := range s.NUMANodes {
		if n < -1 {
			found.at(fmt.Sprintf("%s.numaNodes[%d]", place, i), fmt.Errorf("%d is no NUMA node: they count from 0, and -1 stands for HCAs that belong to none", n))
		}
	}
}

// checkText refuses what would break a log line.
func checkText(text string, most int) error {
	if len(text) > most {
		return fmt.Errorf("it is %d bytes long: write at most %d", len(text), most)
	}
	for _, r := range text {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return fmt.Errorf("it has the character %+q, which cannot be printed: write one line of text", r)
		}
	}
	return nil
}
