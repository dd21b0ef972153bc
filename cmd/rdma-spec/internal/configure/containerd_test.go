// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	nodev1 "k8s.io/api/node/v1"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
	"github.com/rdma-spec/rdma-spec/spec/baseline"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// A base spec that ctr oci spec prints limits containers to 1024 files. The new base spec keeps the rest of it.
func TestConfigureHandlerCuresABaseSpec(t *testing.T) {
	root, _ := configureNode(t)
	scratch.Files(t, root, map[string]string{
		"etc/containerd/cri-base.json": `{"ociVersion":"1.1.0","hostname":"kept","linux":{},"process":{"rlimits":[{"type":"RLIMIT_NOFILE","hard":1024,"soft":1024}]}}`,
		"etc/containerd/config.toml": "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n  " +
			"runtime_type = 'io.containerd.runc.v2'\n" +
			"  base_runtime_spec = '/etc/containerd/cri-base.json'\n[plugins.'io.containerd.nri.v1.nri']\n  disable = true\n",
	}, 0o600)
	if got := done(t, root, "handler runc --in-place"); strings.Contains(got.Stdout, "RuntimeClass") {
		t.Fatalf("%+v", got)
	}
	text, err := os.ReadFile(filepath.Join(root, "etc/containerd/rdma-spec-runc.json"))
	var made specs.Spec
	if err = errors.Join(err, json.Unmarshal(text, &made)); err != nil {
		t.Fatal(err)
	}
	want := []specs.POSIXRlimit{{Type: "RLIMIT_MEMLOCK", Hard: math.MaxUint64, Soft: math.MaxUint64}}
	if diff := cmp.Diff(want, made.Process.Rlimits); diff != "" || made.Hostname != "kept" || !baseline.HasIPCLock(text) {
		t.Errorf("rlimits (-want +got):\n%s\n%s", diff, text)
	}
}

// installedNode returns a node with a containerd that was built.
func installedNode(t *testing.T, program string) (root string) {
	t.Helper()
	root, _ = configureNode(t)
	scratch.File(t, filepath.Join(root, "usr/bin/containerd"), "#!/bin/sh\nexec "+program+" \"$@\"\n", 0o755)
	return root
}

// The whole way with the containerds that were built for the node: one command each, and everything is restored.
func TestConfigureWithInstalledContainerd(t *testing.T) {
	for _, version := range []string{"1.7.35", "2.4.2"} {
		t.Run(version, func(t *testing.T) {
			root := installedNode(t, repository.Containerd(t, version))
			if err := os.Remove(filepath.Join(root, "etc/containerd/config.toml")); err != nil {
				t.Fatal(err)
			}
			before := nodeFiles(t, root)
			for _, args := range []string{"--all --program " + root + "/nri-rdma", "handler rdma --like runc", "limits"} {
				got := done(t, root, args)
				if !strings.HasPrefix(got.Stdout, "wrote ") {
					t.Fatalf("configure %s: %+v", args, got)
				}
				_, text, isClass := strings.Cut(got.Stdout, "\n---\n")
				var class nodev1.RuntimeClass
				if isClass != strings.HasPrefix(args, "handler") {
					t.Errorf("configure %s prints %s", args, got.Stdout)
				}
				if err := yaml.UnmarshalStrict([]byte(text), &class); err != nil || isClass &&
					(class.Handler != "rdma" || class.Name != "rdma") {
					t.Errorf("%v: %s", err, text)
				}
			}
			// In containerd 1.x, both are lines of the one file. The earlier one goes, and the later one stays in effect.
			done(t, root, "nri --revert")
			found, err := runtime.Read(t.Context(), root)
			if err != nil || !slices.ContainsFunc(found.Runtimes[0].Handlers,
				func(h runtime.Handler) bool { return h.Name == "rdma" && h.Error == "" }) ||
				found.Runtimes[0].NRI.On != (version == "2.4.2") {
				t.Errorf("without nri: %+v, %v", found, err)
			}
			done(t, root, "--revert")
			unchanged(t, root, before, "afterwards")
		})
	}
}
