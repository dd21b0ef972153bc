// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/await"
)

func TestApplyRefuses(t *testing.T) {
	const cannot = ": not an OCI runtime spec that can be changed"
	for name, test := range map[string]struct{ text, want string }{
		"nothing":          {"", "the spec is empty: expected a JSON object"},
		"white space":      {" \n\t", "the spec is empty: expected a JSON object"},
		"half an object":   {`{"process":{`, "the spec is not JSON: it ends in the middle"},
		"half a key":       {`{"proc`, "the spec is not JSON: it ends in the middle"},
		"no closing brace": {`{"process":{}`, "the spec is not JSON: it ends in the middle"},
		"no JSON": {`ociVersion: 1.0.2`,
			"the spec is not JSON: invalid character 'o' looking for beginning of value"},
		"no JSON in it": {`{"process":{"rlimits":[1,]}}`,
			"the spec is not JSON: invalid character ']' looking for beginning of value"},
		"no key":          {`{1:2}`, "the spec is not JSON: invalid character '1'"},
		"no JSON, unread": {`{"hooks":nul}`, "the spec is not JSON: invalid character '}' in literal null (expecting 'l')"},
		"wrong bracket":   {`{"process":{}]`, "the spec is not JSON: invalid character ']' after object key:value pair"},
		"array":           {`[]`, "the spec is not a JSON object" + cannot},
		"string":          {`"{}"`, "the spec is not a JSON object" + cannot},
		"null":            {`null`, "the spec is not a JSON object" + cannot},
		"two objects":     {`{} {}`, "the spec is followed by something else: expected one JSON object"},
		"text behind":     {`{}x`, "the spec is followed by something else: expected one JSON object"},

		"process an array":   {`{"process":[]}`, "process is not a JSON object" + cannot},
		"process a number":   {`{"process":1e400}`, "process is not a JSON object" + cannot},
		"process false":      {`{"process":false}`, "process is not a JSON object" + cannot},
		"linux an array":     {`{"linux":[]}`, "linux is not a JSON object" + cannot},
		"resources an array": {`{"linux":{"resources":[]}}`, "linux.resources is not a JSON object" + cannot},
		"capabilities of OCI 0.x": {`{"process":{"capabilities":["CAP_CHOWN"]}}`,
			"process.capabilities is not a JSON object" + cannot},

		"rlimits an object":  {`{"process":{"rlimits":{}}}`, "process.rlimits is not a JSON array" + cannot},
		"an rlimit null":     {`{"process":{"rlimits":[null]}}`, "process.rlimits[0] is not a JSON object" + cannot},
		"an rlimit an array": {`{"process":{"rlimits":[{},[]]}}`, "process.rlimits[1] is not a JSON object" + cannot},
		"an rlimit of -1": {`{"process":{"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":-1,"soft":-1}]}}`,
			"process.rlimits[0] is not an rlimit with a type, and hard and soft from 0 to 18446744073709551615" + cannot},
		"an rlimit of 2^64": {`{"process":{"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":18446744073709551616}]}}`,
			"process.rlimits[0] is not an rlimit"},
		"an rlimit from a float": {`{"process":{"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":1.8446744073709552e+19}]}}`,
			"process.rlimits[0] is not an rlimit"},
		"an rlimit of 1e400": {`{"process":{"rlimits":[{"type":"RLIMIT_CORE","hard":1e400}]}}`,
			"process.rlimits[0] is not an rlimit"},
		"a type that is a number": {`{"process":{"rlimits":[{"type":8}]}}`, "process.rlimits[0] is not an rlimit"},
		"a set that is an object": {`{"process":{"capabilities":{"permitted":{}}}}`,
			"process.capabilities.permitted is not a JSON array" + cannot},
		"bounding a string": {`{"process":{"capabilities":{"bounding":"ALL"}}}`,
			"process.capabilities.bounding is not a JSON array" + cannot},
		"a capability that is none": {`{"process":{"capabilities":{"effective":[14]}}}`,
			"process.capabilities.effective is not an array of names" + cannot},

		"devices an object": {`{"linux":{"devices":{}}}`, "linux.devices is not a JSON array" + cannot},
		"a device a string": {`{"linux":{"devices":["/dev/null"]}}`, "linux.devices[0] is not a JSON object" + cannot},
		"a device's major": {`{"linux":{"devices":[{"path":"/dev/x","major":"1"}]}}`,
			"linux.devices[0] is not a device" + cannot},
		"rules an object": {`{"linux":{"resources":{"devices":{}}}}`,
			"linux.resources.devices is not a JSON array" + cannot},
		"a rule null": {`{"linux":{"resources":{"devices":[null]}}}`,
			"linux.resources.devices[0] is not a JSON object" + cannot},
		"a rule that says maybe": {`{"linux":{"resources":{"devices":[{"allow":true},{"allow":"maybe"}]}}}`,
			"linux.resources.devices[1] is not a device rule" + cannot},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := everything.Apply([]byte(test.text), AllSets)
			if err == nil || !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("Apply: %v; want %s", err, test.want)
			}
			if out != nil {
				t.Errorf("Apply gives an error and a text: %s", out)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("the error has several lines: %q", err)
			}
		})
	}
}

// Of two keys that are equal, or equal but for case, it is unknown which one a runtime uses.
func TestApplyRefusesAKeyGivenTwice(t *testing.T) {
	for text, want := range map[string]string{
		`{"process":{},"process":{}}`:                                            `the spec has the key "process" twice`,
		`{"process":{},"Process":{}}`:                                            `the spec has the key "Process" twice`,
		`{"process":{},"proce\u017f\u017f":{}}`:                                  `the spec has the key "proceſſ" twice`,
		`{"process":{},"\u0070rocess":null}`:                                     `the spec has the key "process" twice`,
		`{"x":1,"linux":{},"X":2}`:                                               `the spec has the key "X" twice`,
		`{"linu\u212A":1,"linuK":1}`:                                             `the spec has the key "linuK" twice`,
		`{"process":{"rlimits":[],"RLIMITS":[]}}`:                                `process has the key "RLIMITS" twice`,
		`{"process":{"capabilities":{"bounding":[],"Bounding":[]}}}`:             `process.capabilities has the key "Bounding" twice`,
		`{"process":{"rlimits":[{"type":"RLIMIT_NOFILE"},{"soft":1,"Soft":2}]}}`: `process.rlimits[1] has the key "Soft" twice`,
		`{"linux":{"devices":[{"path":"/a","path":"/b"}]}}`:                      `linux.devices[0] has the key "path" twice`,
		`{"linux":{"resources":{"devices":[],"deviceS":[]}}}`:                    `linux.resources has the key "deviceS" twice`,
		`{"linux":{"resources":{"devices":[{"allow":true,"allow":false}]}}}`:     `linux.resources.devices[0] has the key "allow" twice`,
	} {
		if _, err := everything.Apply([]byte(text), AllSets); err == nil || err.Error() != want+": keep one of them" {
			t.Errorf("Apply(%s): %v; want %s", text, err, want)
		}
	}
}

// Each key is compared with all others: that must not take hours for a spec as large as one that is read may be.
func TestApplyToManyKeys(t *testing.T) {
	text := []byte(`{"k":0`)
	for i := range 300_000 {
		text = fmt.Appendf(text, `,"a%x":0`, i)
	}
	text = append(text, '}')
	done := make(chan []byte, 1)
	go func() {
		out, _ := Grant{Memlock: Unlimited}.Apply(text, nil)
		done <- out
	}()
	out := await.Receive(t, await.Patience, "the end of Apply to a spec of 3 MiB", done)
	if !bytes.HasSuffix(out,
		[]byte(`,"process":{"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":18446744073709551615,"soft":18446744073709551615}]}}`)) {
		t.Errorf("the last bytes are %s", out[max(0, len(out)-200):])
	}
}
