// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/test/testing/expect"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

var (
	uverbs0 = hca.Device{Kind: hca.KindVerbs, Path: "/dev/infiniband/uverbs0", Number: hca.Number{Major: 231, Minor: 192},
		Mode: 0o666, HCA: "mlx5_0"}
	uverbs1 = hca.Device{Kind: hca.KindVerbs, Path: "/dev/infiniband/uverbs1", Number: hca.Number{Major: 231, Minor: 193},
		Mode: 0o660, GID: 44, HCA: "mlx5_1"}
	rdmaCM = hca.Device{Kind: hca.KindRDMACM, Path: "/dev/infiniband/rdma_cm", Number: hca.Number{Major: 10,
		Minor: 58}, Mode: 0o666}

	everything = Grant{Memlock: Unlimited, IPCLock: IPCLockYes, Devices: []hca.Device{uverbs0, uverbs1, rdmaCM}}
)

// mustApply applies a grant, and applies it again to the result, which must not change any more. The input must not be
// modified.
func mustApply(t *testing.T, g Grant, text string, sets CapabilitySets) string {
	t.Helper()
	in := []byte(text)
	out, err := g.Apply(in, sets)
	if err != nil {
		t.Fatalf("Apply: %v", err)
	}
	if string(in) != text {
		t.Errorf("Apply wrote into its input:\n%s", cmp.Diff(text, string(in)))
	}
	again, err := g.Apply(bytes.Clone(out), sets)
	if err != nil {
		t.Fatalf("Apply to its own result: %v", err)
	}
	expect.Equal(t, "applied twice, not once", string(out), string(again))
	return string(out)
}

// indented formats JSON so that it can be compared line by line.
func indented(t *testing.T, text string) string {
	t.Helper()
	var out bytes.Buffer
	if err := json.Indent(&out, []byte(text), "", "  "); err != nil {
		t.Fatalf("no JSON: %v\n%s", err, text)
	}
	return out.String() + "\n"
}

func TestApplyGolden(t *testing.T) {
	for name, test := range map[string]struct {
		grant Grant
		sets  CapabilitySets
	}{
		"empty":                {everything, BaseSets},
		"cri-base":             {Grant{Memlock: Unlimited, IPCLock: IPCLockYes}, BaseSets},
		"pod-of-containerd":    {everything, AllSets},
		"pod-of-crio":          {Grant{Memlock: 16 << 30, Devices: []hca.Device{uverbs0, rdmaCM}}, AllSets},
		"device-plugin-and-me": {everything, AllSets},
	} {
		t.Run(name, func(t *testing.T) {
			in := scratch.Read(t, filepath.Join("testdata", "apply", name+".json"))
			got := indented(t, mustApply(t, test.grant, in, test.sets))
			golden.Compare(t, filepath.Join("testdata", "apply", name+".golden"), got)
		})
	}
}

// strange is a spec with everything that a JSON library might normalize. The grant changes the words in capitals.
const strange = "\t{ \"ociVersion\" :\t\"1.0.2-dev\",\r\n" +
	`"\u0061nnotations":{"<b>&amp;</b>":"\u003c\/script\u003E","a":"\ud83d\ude00 \u00e9 é \u2028  ` + "\u2028" +
	`","dup":1,"dup":2,"DUP":3},` + "\n\n" +
	`  "futureField":{"x":[1,[2,{"y":null}]],"e":1e400,"E":-0.00,"neg":-18446744073709551616,"huge":18446744073709551615.0,"third":[{},{ }]},` +
	`"hostname":"\"}],{[\\","process":{"terminal":false , "rlimit":"not rlimits","\u0072limits" : RLIMITS ,` +
	`"env":[ "A=<>&" ],` + "\n\t" +
	`"capabilities":{ "bounding":BOUNDING,"effective" :EFFECTIVE, "permitted": PERMITTED,"odd":["CAP_X"] },` +
	`"oomScoreAdj":999999999999999999999999999999},` +
	`"linux":{ "resources" : {"devices":RULES, "memory":{"limit":9223372036854775807,"kernel":18446744073709551615} , "unified":{}},` +
	`"devices":DEVICES,"seccomp":{"architectures":["\u0053CMP"],"syscalls":null}},"vm":[],"windows":null}` + " \n"

// changing returns strange in which the words in capitals are replaced.
func changing(lists map[string]string) string {
	text := strange
	for list, with := range lists {
		text = strings.ReplaceAll(text, list, with)
	}
	return text
}

func TestApplyLeavesTheRestByteForByte(t *testing.T) {
	before := changing(map[string]string{
		"RLIMITS":   `[ {"type":"RLIMIT_NOFILE","hard":18446744073709551615,"soft":1,"why":"\u003c"},{"soft" : 65536, "x":1e400, "hard" : 65536, "type":"RLIMIT_MEMLOCK"} ]`,
		"BOUNDING":  `["CAP_CHOWN","CAP_\u0058"]`,
		"EFFECTIVE": `[ ]`,
		"PERMITTED": `null`,
		"RULES":     `[{"allow":false,"access":"rwm","n":1e400}]`,
		"DEVICES":   `[{"path":"/dev/<x>","type":"c","major":1,"minor":3,"new":18446744073709551616}]`,
	})
	after := changing(map[string]string{
		"RLIMITS": `[{"type":"RLIMIT_NOFILE","hard":18446744073709551615,"soft":1,"why":"\u003c"},` +
			`{"soft" : 18446744073709551615, "x":1e400, "hard" : 18446744073709551615, "type":"RLIMIT_MEMLOCK"}]`,
		"BOUNDING":  `["CAP_CHOWN","CAP_\u0058","CAP_IPC_LOCK"]`,
		"EFFECTIVE": `["CAP_IPC_LOCK"]`,
		"PERMITTED": `["CAP_IPC_LOCK"]`,
		"RULES":     `[{"allow":false,"access":"rwm","n":1e400},{"allow":true,"type":"c","major":231,"minor":192,"access":"rw"}]`,
		"DEVICES": `[{"path":"/dev/<x>","type":"c","major":1,"minor":3,"new":18446744073709551616},` +
			`{"path":"/dev/infiniband/uverbs0","type":"c","major":231,"minor":192,"fileMode":438,"uid":0,"gid":0}]`,
	})
	got := mustApply(t, Grant{Memlock: Unlimited, IPCLock: IPCLockYes, Devices: []hca.Device{uverbs0}}, before, BaseSets)
	expect.Equal(t, "Apply", after, got)
}

// If a spec already contains the grant, Apply returns the same bytes, however they are formatted.
func TestApplyLeavesWhatSufficesByteForByte(t *testing.T) {
	text := changing(map[string]string{
		"RLIMITS":   `[ { "TYPE":"RLIMIT_MEMLOCK", "hard" : 18446744073709551615, "soft":18446744073709551615 } ]`,
		"BOUNDING":  `[ "CAP_IPC_LOCK" , "CAP_CHOWN" ]`,
		"EFFECTIVE": `["\u0043AP_IPC_LOCK"]`,
		"PERMITTED": `[ "CAP_CHOWN", "CAP_IPC_LOCK" ]`,
		"RULES":     `[{"allow":false}, {"access":"mrw","minor":192,"major":231,"type":"c","allow":true } ]`,
		"DEVICES":   `[ {"path":"\/dev\/infiniband\/uverbs0","type":"u","major":231,"minor":192} ]`,
	})
	got := mustApply(t, Grant{Memlock: Unlimited, IPCLock: IPCLockYes, Devices: []hca.Device{uverbs0}}, text, BaseSets)
	expect.Equal(t, "Apply changed a spec that has everything", text, got)
}

func TestApplyOfNothingChangesNothing(t *testing.T) {
	for _, text := range []string{strings.NewReplacer("RLIMITS", "[]", "BOUNDING", "7", "EFFECTIVE", "{}", "PERMITTED",
		"[]", "RULES", "0", "DEVICES", "0").Replace(strange), "{}", " {\n} "} {
		if got := mustApply(t, Grant{}, text, AllSets); got != text {
			t.Errorf("the zero Grant changes a spec:\n%s", cmp.Diff(text, got))
		}
	}
}

func TestApplyMakesMissingSections(t *testing.T) {
	const (
		rlimits = `[{"type":"RLIMIT_MEMLOCK","hard":16777216,"soft":16777216}]`
		lists   = `{"rlimits":` + rlimits + `,"capabilities":{"ambient":["CAP_IPC_LOCK"]}}`
		linux   = `{"devices":[{"path":"/dev/infiniband/rdma_cm","type":"c","major":10,"minor":58,"fileMode":438,"uid":0,"gid":0}],` +
			`"resources":{"devices":[{"allow":true,"type":"c","major":10,"minor":58,"access":"rw"}]}}`
	)
	grant := Grant{Memlock: 16 << 20, IPCLock: IPCLockYes, Devices: []hca.Device{rdmaCM}}
	for name, test := range map[string]struct{ text, want string }{
		"empty object":  {"{}", `{"process":` + lists + `,"linux":` + linux + `}`},
		"spaces in it":  {"{ \n}", `{"process":` + lists + `,"linux":` + linux + " \n}"},
		"null sections": {`{"linux": null,"process":null }`, `{"linux": ` + linux + `,"process":` + lists + ` }`},
		"empty sections": {`{"process":{ },"linux":{}}`, `{"process":` + lists[:len(lists)-1] +
			` },"linux":` + linux + `}`},
		"null lists": {`{"process":{"capabilities":null,"rlimits":null},"linux":null}`,
			`{"process":{"capabilities":{"ambient":["CAP_IPC_LOCK"]},"rlimits":` + rlimits + `},"linux":` + linux + `}`},
		"other spelling": {`{"PROCESS":{"Rlimits":[]},"linux":null}`, `{"PROCESS":{"Rlimits":` + rlimits +
			`,"capabilities":{"ambient":["CAP_IPC_LOCK"]}},"linux":` + linux + `}`},
		"beside unknown": {`{"x":1e400}`, `{"x":1e400,"process":` + lists + `,"linux":` + linux + `}`},
		"null resources": {`{"process":` + lists + `,"linux":{"resources":null}}`, `{"process":` + lists +
			`,"linux":{"resources":{"devices":[{"allow":true,"type":"c","major":10,"minor":58,"access":"rw"}]},` +
			linux[1:strings.Index(linux, `,"resources"`)] + `}}`},
		"key with escapes": {`{"\u0070rocess":{},"linux":` + linux + `}`, `{"\u0070rocess":` + lists +
			`,"linux":` + linux + `}`},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Equal(t, "Apply", test.want, mustApply(t, grant, test.text, CapabilitySets{"ambient"}))
		})
	}
}
