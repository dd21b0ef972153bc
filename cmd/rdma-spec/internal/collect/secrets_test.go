// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// An error that quotes a configuration keeps what is wrong with it, and loses the secret.
func TestErrorsHaveNoSecrets(t *testing.T) {
	for text, want := range map[string]string{
		`toml: line 3: expected = in psk = "s3cr3t"`:                   `toml: line 3: expected = in psk = REDACTED`,
		`line 7: access_key: s3cr3t, s3cr3t`:                           `line 7: access_key: REDACTED`,
		`{"identitytoken": "s3cr3t"}`:                                  `{"identitytoken": REDACTED`,
		`registry.configs.x.auth.password='s3cr3t'`:                    `registry.configs.x.auth.password=REDACTED`,
		`[header] Authorization = "Basic s3cr3t"`:                      `[header] Authorization = REDACTED`,
		`client-key-data: s3cr3t`:                                      `client-key-data: REDACTED`,
		`cannot get https://example.com/a?b=c&sig=s3cr3t`:              `cannot get https://example.com/a?b=c&sig=REDACTED`,
		`cannot get https://user:s3cr@3t@example.com/a`:                `cannot get https://REDACTED@example.com/a`,
		`unknown field "memlok"`:                                       `unknown field "memlok"`,
		`/run/containerd/containerd.sock: no such file or directory`:   `/run/containerd/containerd.sock: no such file or directory`,
		`container ml/train-0: memlock is 8Mi, the policy gives 16Gi`:  `container ml/train-0: memlock is 8Mi, the policy gives 16Gi`,
		`authorization is a word, and the author of signal=9 is known`: `authorization is a word, and the author of signal=9 is known`,
	} {
		got, err := withoutSecrets(map[string]any{"error": text, "memlock": uint64(1<<64 - 1)})
		if err != nil {
			t.Fatal(err)
		}
		var kept struct {
			Error   string
			Memlock uint64
		}
		if err := json.Unmarshal(got, &kept); err != nil || kept.Memlock != 1<<64-1 {
			t.Errorf("%v: %s", err, got)
		}
		if diff := cmp.Diff(want, kept.Error); diff != "" || strings.Contains(string(got), "3t") {
			t.Errorf("-want +got:\n%s\n%s", diff, got)
		}
	}
}
