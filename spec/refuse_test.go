// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
)

// Specs that cannot be changed, and the errors.
func TestApplyRefuses(t *testing.T) {
	var got strings.Builder
	for _, text := range []string{
		// Not exactly one JSON object.
		"", " \n\t", `{"process":{`, `{"proc`, `{"process":{}`, `ociVersion: 1.0.2`, `{"process":{"rlimits":[1,]}}`, `{1:2}`,
		`{"hooks":nul}`, `{"process":{}]`, `[]`, `"{}"`, `null`, `{} {}`, `{}x`,
		// Sections of another type.
		`{"process":[]}`, `{"process":1e400}`, `{"process":false}`, `{"linux":[]}`, `{"linux":{"resources":[]}}`,
		`{"process":{"capabilities":["CAP_CHOWN"]}}`, // as in OCI 0.x
		// limits
		`{"process":{"rlimits":{}}}`, `{"process":{"rlimits":[null]}}`, `{"process":{"rlimits":[{},[]]}}`,
		`{"process":{"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":-1,"soft":-1}]}}`,
		`{"process":{"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":18446744073709551616}]}}`,
		`{"process":{"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":1.8446744073709552e+19}]}}`,
		`{"process":{"rlimits":[{"type":"RLIMIT_CORE","hard":1e400}]}}`, `{"process":{"rlimits":[{"type":8}]}}`,
		// capabilities
		`{"process":{"capabilities":{"permitted":{}}}}`, `{"process":{"capabilities":{"bounding":"ALL"}}}`,
		`{"process":{"capabilities":{"effective":[14]}}}`,
		// devices and rules
		`{"linux":{"devices":{}}}`, `{"linux":{"devices":["/dev/null"]}}`,
		`{"linux":{"devices":[{"path":"/dev/x","major":"1"}]}}`,
		`{"linux":{"resources":{"devices":{}}}}`, `{"linux":{"resources":{"devices":[null]}}}`,
		`{"linux":{"resources":{"devices":[{"allow":true},{"allow":"maybe"}]}}}`,
		// Two keys that are equal, or differ only in case: it is unknown which one a runtime uses.
		`{"process":{},"process":{}}`, `{"process":{},"Process":{}}`, `{"process":{},"proce\u017f\u017f":{}}`,
		`{"process":{},"\u0070rocess":null}`, `{"x":1,"linux":{},"X":2}`, `{"linu\u212A":1,"linuK":1}`,
		`{"process":{"rlimits":[],"RLIMITS":[]}}`, `{"process":{"capabilities":{"bounding":[],"Bounding":[]}}}`,
		`{"process":{"rlimits":[{"type":"RLIMIT_NOFILE"},{"soft":1,"Soft":2}]}}`,
		`{"linux":{"devices":[{"path":"/a","path":"/b"}]}}`,
		`{"linux":{"resources":{"devices":[],"deviceS":[]}}}`,
		`{"linux":{"resources":{"devices":[{"allow":true,"allow":false}]}}}`,
	} {
		out, err := everything.Apply([]byte(text), AllSets)
		if err == nil || out != nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("Apply(%s): %q, and a text of %d bytes", text, err, len(out))
			continue
		}
		fmt.Fprintf(&got, "%q\n    %v\n", text, err)
	}
	golden.Compare(t, filepath.Join("testdata", "refused.golden"), got.String())
}

// Each key is compared with all others, which must not take hours for the largest spec that is read.
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
	out := await.Receive(t, await.Timeout, "the end of Apply to a spec of 3 MiB", done)
	if !bytes.HasSuffix(out,
		[]byte(`,"process":{"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":18446744073709551615,"soft":18446744073709551615}]}}`)) {
		t.Errorf("the last bytes are %s", out[max(0, len(out)-200):])
	}
}
