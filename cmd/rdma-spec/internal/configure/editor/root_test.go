// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package editor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/record"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// The files of a node below a root have the node's paths, and containerd loads the files below the root.
func TestRoot(t *testing.T) {
	const options = "\n[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc]\nruntime_type = " +
		"'io.containerd.runc.v2'\nbase_runtime_spec = '/etc/runc.json'\n"
	root := scratch.With(t, map[string]string{
		"usr/bin/containerd":              "",
		"etc/runc.json":                   `{"ociVersion":"1.1.0","linux":{}}`,
		"etc/containerd/config.toml":      "version = 2\nimports = ['/etc/containerd/conf.d/*.toml']\n",
		"etc/containerd/conf.d/runc.toml": "version = 2\n" + options,
	}, 0o600)
	found := containerd.Find(root)
	if len(found) != 1 {
		t.Fatalf("containerds: %v", found)
	}
	d := found[0]
	d.Program = loader("2.4.2")
	ledger, err := change.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer ledger.Close()
	got := map[string]string{}
	for feature, planned := range map[string]func() (change.Plan, error){
		"nri":     func() (change.Plan, error) { return ofNRI(d, false).NRI(t.Context()) },
		"handler": func() (change.Plan, error) { return ofHandler(d, "rdma", "runc").Handler(t.Context(), someSpec) },
	} {
		plan, err := planned()
		if err == nil {
			err = ledger.Apply(plan, func() error { return d.Check(t.Context()) }, record.Goal{Feature: feature})
		}
		if err != nil {
			t.Fatalf("%s: %v", feature, err)
		}
		for _, f := range plan.Changed() {
			got[strings.TrimPrefix(f.Path, root)] = string(f.Content)
		}
		if diff := changes(t, planned); diff != "" {
			t.Errorf("%s, a second run:\n%s", feature, diff)
		}
	}
	const written = "# Written by rdma-spec configure; rdma-spec configure --revert removes it.\nversion = 2\n\n"
	want := map[string]string{
		"/etc/containerd/conf.d/90-rdma-spec-nri.toml": written +
			"[plugins.\"io.containerd.nri.v1.nri\"]\n  disable = false\n",
		"/etc/containerd/conf.d/90-rdma-spec-handler-rdma.toml": written +
			"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.rdma]\n" +
			"  base_runtime_spec = \"/etc/containerd/rdma-spec-rdma.json\"\n  runtime_type = \"io.containerd.runc.v2\"\n",
		"/etc/containerd/rdma-spec-rdma.json": `{"ociVersion": "1.0.2", "linux": {}, "made of": "{'ociVersion':'1.1.0','linux':{}}"}` + "\n",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	scratch.File(t, d.File(), "version = 2\nimports = ['"+root+"/etc/containerd/conf.d/*.toml']\n", 0o600)
	if effective, err := d.Effective(t.Context(), nil); err != nil ||
		effective["plugins"].(map[string]any)[containerd.NRIPlugin].(map[string]any)["disable"] != true { // a test's
		t.Errorf("with imports that the node does not have: %v, %v", effective, err)
	}
	if err := errors.Join(os.Remove(d.File()),
		os.Remove(filepath.Join(root, "etc/containerd/conf.d/90-rdma-spec-handler-rdma.toml"))); err != nil {
		t.Fatal(err)
	}
	if plan, err := ofNRI(d, false).NRI(t.Context()); err != nil || !strings.Contains(plan.Diff(),
		`+imports = ["/etc/containerd/rdma-spec.d/*.toml"]`) {
		t.Errorf("without a configuration: %v, %v", plan, err)
	}
}
