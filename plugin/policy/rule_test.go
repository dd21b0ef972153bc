// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/test/testing/expect"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
)

const rules = `
optIn: {resources: [rdma/*]}
rules:
- {name: gold, match: {namespaces: [ml-*], resources: [rdma/gold]}, memlock: unlimited, ipcLock: always}
- {name: team-a, match: {namespaces: [ml-team-a]}, memlock: 64Gi}
- {name: vf, match: {resources: [rdma/vf*]}, memlock: 1Gi}
- {match: {namespaces: [ml-*]}, memlock: memory-limit}
- {name: exempt, match: {namespaces: [infra]}}
- {name: untouched, match: {namespaces: [legacy]}, memlock: unchanged}
`

func TestRules(t *testing.T) {
	device := heldVerbs(0)
	by := func(rule string, grant *spec.Grant) Decision {
		d := byDevice(grant)
		d.Rule = rule
		return d
	}
	less := func(rules string, grant *spec.Grant) Decision {
		d := by(rules, grant)
		d.Unknown = true
		d.Warnings = []string{"reduced grant: the kubelet's list of this container's resources is incomplete, so the container " +
			"gets the lowest grant of the rules " + rules}
		return d
	}
	silenced := func(rules string) Decision {
		d := by(rules, nil)
		d.Refusal = &Refusal{CauseKubelet,
			"the kubelet did not report the container's resources (context deadline exceeded): if the " +
				"kubelet's retries also fail, check the kubelet's log on the node"}
		return d
	}
	none := kubeletHolds("example.com/net") // which no rule names
	tests := map[string]struct {
		config    string
		container subject
		want      Decision
	}{
		"no-rule":               {"", askedFor("web", none, device), by("default", unlimited())},
		"not-an-rdma-container": {"", subject{Container: Container{Namespace: "ml-1", Devices: []Device{gpu(0)}}, Resources: kubeletHolds("nvidia.com/gpu")}, Decision{Signal: SignalNone}},
		"first-match-wins": {"", askedFor("ml-team-a", kubeletHolds("rdma/gold"), device),
			by("gold", &spec.Grant{Memlock: spec.Unlimited, IPCLock: spec.IPCLockYes})},
		"second":      {"", askedFor("ml-team-a", none, device), by("team-a", &spec.Grant{Memlock: 64 << 30})},
		"by-resource": {"", askedFor("web", kubeletHolds("a/b", "rdma/vf1"), device), by("vf", &spec.Grant{Memlock: 1 << 30})},
		"unnamed": {"", subject{Container: Container{Namespace: "ml-b", Devices: []Device{device}, MemoryLimit: 1 << 20}, Resources: none},
			by("rules[3]", &spec.Grant{Memlock: 1 << 20})},
		"exempt":    {"", askedFor("infra", none, device), by("exempt", unlimited())},
		"unchanged": {"", askedFor("legacy", none, device), by("untouched", &spec.Grant{})},
		"unchanged-and-always": {"rules: [{name: r, match: {namespaces: [legacy]}, memlock: unchanged, ipcLock: always}]",
			subject{Container: Container{Namespace: "legacy", Devices: []Device{device}}},
			by("r", &spec.Grant{IPCLock: spec.IPCLockYes})},

		"unexplained-device": {"", askedFor("web", kubeletHolds(), device), less("vf, default", &spec.Grant{Memlock: 1 << 30})},
		"device-that-was-injected": {"", askedFor("web", kubeletHolds(), device).with(func(c *subject) { c.Injected = true }),
			by("default", unlimited())},
		"unknown": {"", askedFor("web", unlisted(), device), less("vf, default", &spec.Grant{Memlock: 1 << 30})},
		"unknown-up-to-the-certain-one": {"", askedFor("ml-team-a", unlisted(), device),
			less("gold, team-a", &spec.Grant{Memlock: 64 << 30})},
		"unknown-and-no-memory-limit": {"", askedFor("ml-b", unlisted(), device), less("gold, vf, rules[3]", &spec.Grant{})},
		"unknown-beside-what-is-known": {"", askedFor("ml-b", unlisted("rdma/gold"), device),
			by("gold", &spec.Grant{Memlock: spec.Unlimited, IPCLock: spec.IPCLockYes})},
		"unknown-and-all-the-same": {"rules: [{match: {resources: [a/b]}}]", askedFor("", unlisted(), device),
			by("rules[0]", unlimited())},
		"unknown-elsewhere": {"rules: [{match: {namespaces: [ml-*], resources: [a/b]}, memlock: 1}]",
			askedFor("web", unlisted(), device), by("default", unlimited())},
		"kubelet-silent": {"", askedFor("web", silent, device), silenced("vf, default")},
		"kubelet-silent-and-annotated": {"", subject{Container: Container{Namespace: "web", Devices: []Device{device},
			Annotations: podAnnotation("true")}, Resources: silent}, silenced("vf, default")},
		"kubelet-silent-and-all-the-same": {"rules: [{match: {resources: [a/b]}}]", askedFor("", silent, device),
			by("rules[0]", unlimited())},
		"kubelet-silent-elsewhere": {"rules: [{match: {namespaces: [ml-*], resources: [a/b]}, memlock: 1}]",
			askedFor("web", silent, device), by("default", unlimited())},
	}
	node := node(t, "V100")
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			config := test.config
			if config == "" {
				config = rules
			}
			got := policyOf(t, config).decide(test.container, node)
			expect.Equal(t, "decision", test.want, got)
		})
	}
}

// A rule by resource for all namespaces, and optIn.resources, make every container of the node wait for the kubelet.
func TestDoubtsOfCosts(t *testing.T) {
	for text, want := range map[string]bool{
		"rules: [{match: {resources: [rdma/*]}}]":                            true,
		"rules: [{match: {namespaces: ['*'], resources: [rdma/*]}}]":         true,
		"rules: [{match: {namespaces: [ml, 'm*'], resources: [rdma/*]}}]":    false,
		"rules: [{match: {namespaces: [ml]}}]":                               false,
		"optIn: {resources: [rdma/*]}":                                       true,
		"optIn: {resources: []}":                                             false,
		"rules: [{match: {namespaces: [a]}}, {match: {resources: [x/hca]}}]": true,
		"{}": false,
	} {
		p, err := FromText([]byte(text))
		must.Succeed(t, err)
		asked := false
		c := subject{Container: Container{Namespace: "web", Pod: "p", Name: "c"}, Resources: func() ([]string, bool, error) {
			asked = true
			return nil, true, nil
		}}
		if p.decide(c, Facts{}); asked != want || len(p.Doubts()) > 0 != want {
			t.Errorf("%s: the kubelet is asked: %t; it says %q", text, asked, p.Doubts())
		}
	}
}

// IPC_LOCK is never given where it would override a limit, so asking for it there is in vain.
func TestDoubtsOfIPCLock(t *testing.T) {
	const rule = "rules: [{match: {namespaces: [ml]}, "
	for text, want := range map[string]string{
		"{memlock: 1Gi, ipcLock: requested}":              "ipcLock: requested does not grant IPC_LOCK",
		"{memlock: memory-limit, ipcLock: requested}":     "ipcLock: requested does not grant IPC_LOCK",
		rule + "memlock: 1Gi, ipcLock: requested}]":       "rules[0].ipcLock: requested does not grant IPC_LOCK",
		rule + "ipcLock: requested}]\nmemlock: 1Gi":       "rules[0].ipcLock: requested does not grant IPC_LOCK",
		rule + "memlock: unlimited, ipcLock: requested}]": "",
		"ipcLock: requested":                              "",
		"{memlock: 1Gi, ipcLock: false}":                  "",
		"{memlock: 1Gi, ipcLock: always}":                 "",
		"{memlock: memory-limit}":                         "",
	} {
		p, err := FromText([]byte(text))
		must.Succeed(t, err)
		if got := strings.Join(p.Doubts(), "\n"); !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%s: it says %q, want %q", text, got, want)
		}
	}
}

// A Policy is used by every request at once: the race detector looks on.
func TestPolicyIsSafeForConcurrentUse(t *testing.T) {
	p := policyOf(t, rules)
	node := node(t, "V100")
	want := p.decide(subject{Container: Container{Namespace: "ml-a", Devices: []Device{heldVerbs(0)}}, Resources: kubeletHolds("rdma/ib")}, node)
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for range 20 {
				d := p.decide(subject{Container: Container{Namespace: "ml-a", Devices: []Device{heldVerbs(0)}}, Resources: kubeletHolds("rdma/ib")}, node)
				if !reflect.DeepEqual(d, want) {
					t.Errorf("the decision is %+v, and was %+v", d, want)
				}
			}
		})
	}
	wait.Wait()
}

// Which earlier rules are known to match all that a later one does.
func TestCovers(t *testing.T) {
	namespaces := func(globs ...string) Match { return Match{Namespaces: globs} }
	resources := func(globs ...string) Match { return Match{Resources: globs} }
	for _, test := range []struct {
		earlier, later Match
		covers         bool
	}{
		{namespaces("ml-*"), namespaces("ml-a", "ml-b*"), true},
		{namespaces("ml-*"), namespaces("ml-a", "web"), false},
		{namespaces("ml-*", "web"), namespaces("ml-a", "web"), true},
		{namespaces("ml-*"), namespaces("ml*"), false},
		{namespaces("ml-*"), resources("a/b"), false},
		{namespaces("a"), Match{Namespaces: []string{"a"}, Resources: []string{"a/b"}}, true},
		{Match{Namespaces: []string{"a"}, Resources: []string{"a/b"}}, namespaces("a"), false},
		{resources("rdma/*"), Match{Namespaces: []string{"a"}, Resources: []string{"rdma/a"}}, true},
		{resources("*"), resources("rdma/a"), false}, // * stands for no slash
		{resources("*/*"), resources("rdma/*"), true},
		{resources("rdma/*"), resources("*/*"), false},
		{namespaces("*-a*"), namespaces("ml-a?"), true},
		{namespaces("a?"), namespaces("a*"), false},
		{namespaces("a?"), namespaces("a?"), true},
		{namespaces("a[b]"), namespaces("ab"), true},
		{namespaces("a*"), namespaces("a[*"), false},
		{namespaces("a[bc]*"), namespaces("a[bc]x*"), false}, // true, but not found out
	} {
		if got := test.earlier.covers(test.later); got != test.covers {
			t.Errorf("%+v covers %+v: %t, want %t", test.earlier, test.later, got, test.covers)
		}
	}
}
