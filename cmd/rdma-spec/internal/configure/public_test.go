// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	nodev1 "k8s.io/api/node/v1"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/goal"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/spec/baseline"
	"github.com/rdma-spec/rdma-spec/test/testing/race"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// refusals are the parts of the errors of what is refused. Nothing is changed then.
var refusals = map[string]string{
	"1.6 --all":                  "does not support NRI plugins that set limits",
	"1.6/docker-package handler": "turns off the cri plugin in disabled_plugins",
	"1.7/image-builder handler":  `the handler "runc" has no runtime_type, so its pods do not start`,
}

// Configurations in the shape of those of public projects, each with a containerd that reads it: the effective
// configuration, as containerd itself prints it, differs by what was asked for, and --revert gives the bytes of before.
// What they import is not the projects'.
func TestConfigurePublic(t *testing.T) {
	if race.Detector {
		t.Skip("runs containerd hundreds of times, and the race detector does not see it")
	}
	all, err := filepath.Glob("testdata/public/*/*.toml")
	if err != nil || len(all) < 30 {
		t.Fatalf("%d configurations, want more: %v", len(all), err)
	}
	for _, file := range all {
		name := strings.TrimSuffix(strings.TrimPrefix(file, "testdata/public/"), ".toml")
		version, _, _ := strings.Cut(name, "/")
		t.Run(name, func(t *testing.T) {
			program := repository.Containerd(t, version)
			root := publicNode(t, strings.TrimSuffix(file, ".toml"), program)
			before, effective := nodeFiles(t, root), dump(t, program, root)
			like := defaultHandler(effective)
			// --all turns NRI on as nri alone does.
			for what, args := range map[string]string{"handler": "rdma --like " + like,
				"--all": "--program " + root + "/nri-rdma"} {
				got := configure(root, what+" "+args)
				refusal := refusals[version+" "+what] + refusals[name+" "+what]
				if got.Status == 0 != (refusal == "") || !strings.Contains(got.Stderr, refusal) {
					t.Errorf("%s: %+v", what, got)
				}
				want, after := tomledit.Clone(effective), dump(t, program, root)
				if refusal == "" {
					ask(want, what, like)
					wantClass(t, got.Stdout, what == "handler")
				}
				for _, tree := range []map[string]any{want, after} {
					if plugin, all := containerd.Handlers(tree); plugin != "" {
						tomledit.Put(tree, goal.NotZero(all), "plugins", plugin, "containerd", "runtimes")
					}
				}
				if diff := cmp.Diff(want, after); diff != "" {
					t.Errorf("%s: the effective configuration (-want +got):\n%s", what, diff)
				}
				done(t, root, "--revert")
				unchanged(t, root, before, what+", and --revert")
			}
		})
	}
}

// wantClass checks whether a handler's RuntimeClass is printed, and what it is.
func wantClass(t *testing.T, printed string, want bool) {
	t.Helper()
	_, text, isClass := strings.Cut(printed, "\n---\n")
	var class nodev1.RuntimeClass
	if err := yaml.UnmarshalStrict([]byte(text), &class); err != nil || isClass != want ||
		isClass && (class.Handler != "rdma" || class.Name != "rdma") {
		t.Errorf("the RuntimeClass: %v\n%s", err, printed)
	}
}

// defaultHandler returns the handler of pods that name none.
func defaultHandler(effective map[string]any) string {
	plugin, handlers := containerd.Handlers(effective)
	name, _ := tomledit.Lookup(effective, "plugins", plugin, "containerd", "default_runtime_name")
	if name, isString := name.(string); isString && handlers[name] != nil {
		return name
	}
	return "runc"
}

// ask changes an effective configuration as it is asked for.
func ask(effective map[string]any, what, like string) {
	if what != "handler" {
		tomledit.Put(effective, false, "plugins", containerd.NRIPlugin, "disable")
		tomledit.Put(effective, false, "plugins", containerd.NRIPlugin, "disable_connections")
		return
	}
	plugin, handlers := containerd.Handlers(effective)
	made := tomledit.Clone(handlers[like].(map[string]any))
	made[containerd.BaseSpecKey] = "/etc/containerd/rdma-spec-rdma.json"
	tomledit.Put(effective, made, "plugins", plugin, "containerd", "runtimes", "rdma")
}

// publicNode returns a node with a configuration, what it imports, and a containerd.
func publicNode(t *testing.T, config, program string) (root string) {
	t.Helper()
	root = installedNode(t, program)
	const spec = `{"ociVersion":"1.1.0","linux":{}}`
	scratch.Files(t, filepath.Join(root, "etc/containerd"), map[string]string{"config.toml": scratch.Read(t, config+".toml"),
		"cri-base.json": spec, "base-runtime-spec.json": spec}, 0o600)
	if imported := config + ".d"; containerd.Exists(imported) {
		if err := os.CopyFS(root, os.DirFS(imported)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// withEtc returns a command that finds a node's /etc at its place.
func withEtc(root, program string, args ...string) *exec.Cmd {
	return exec.Command("unshare", append([]string{"--mount", "sh", "-ec", `mount --bind "$0/etc" /etc; exec "$@"`, root,
		program}, args...)...)
}

// dump returns the effective configuration of a node as containerd prints it.
func dump(t *testing.T, program, root string) map[string]any {
	t.Helper()
	out, err := withEtc(root, program, "config", "dump").Output()
	if err != nil {
		t.Fatalf("containerd cannot load the configuration: %v", err)
	}
	tree, err := tomledit.Parse(out)
	if err != nil {
		t.Fatal(err)
	}
	delete(tree, "imports") // the files that were read
	return tree
}

// A base spec that ctr oci spec prints limits containers to 1024 files. The new base spec keeps the rest of it.
func TestConfigureHandlerFixesABaseSpec(t *testing.T) {
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
