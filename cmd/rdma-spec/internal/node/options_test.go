// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import "testing"

func TestOptions_Command(t *testing.T) {
	for want, o := range map[string]Options{
		"rdma-spec repair ml/a": {Root: "/"},
		"rdma-spec repair --config c.yaml --root /host --runtime-endpoint /s ml/a": {Config: "c.yaml", Root: "/host",
			Endpoint: "/s"},
		`rdma-spec repair --config 'my config'\''s.yaml' --root '/a;b' ml/a`: {Config: "my config's.yaml", Root: "/a;b"},
		"rdma-spec repair --runtime-endpoint unix:///run/containerd/c.sock_1-2 ml/a": {Root: "/",
			Endpoint: "unix:///run/containerd/c.sock_1-2"},
	} {
		if got := o.Command("repair", "ml/a"); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
