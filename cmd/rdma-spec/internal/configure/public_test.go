// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/test/testing/race"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

// refusals are the parts of the errors of what is refused. Nothing is changed then.
var refusals = map[string]string{
	"1.6 --all":                  "has no NRI that can set limits",
	"1.6/docker-package handler": "turns the plugin cri off in disabled_plugins",
	"1.7/image-builder handler":  `the handler "runc" has no runtime_type, and no pod of it starts`,
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
				}
				for _, tree := range []map[string]any{want, after} {
					if plugin, all := containerd.Handlers(tree); plugin != "" {
						tomledit.Put(tree, notZero(all), "plugins", plugin, "containerd", "runtimes")
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
	made := tomledit.Clone(handlers[like].(map[string]any)) //nolint:forcetypeassert // containerd prints tables
	made[containerd.BaseSpecKey] = "/etc/containerd/rdma-spec-rdma.json"
	tomledit.Put(effective, made, "plugins", plugin, "containerd", "runtimes", "rdma")
}

// notZero returns a table without what is zero in it: containerd 1.x prints the zeros of the handlers that its file
// has, and not those that a program leaves out.
func notZero(table map[string]any) map[string]any {
	kept := map[string]any{}
	for key, value := range table {
		if inner, isTable := value.(map[string]any); isTable {
			value = notZero(inner)
		}
		if v := reflect.ValueOf(value); !v.IsZero() && (v.Kind() != reflect.Slice && v.Kind() != reflect.Map || v.Len() > 0) {
			kept[key] = value
		}
	}
	return kept
}

// publicNode returns a node with a configuration, what it imports, and a containerd.
func publicNode(t *testing.T, config, program string) (root string) {
	t.Helper()
	root = installedNode(t, program)
	spec := []byte(`{"ociVersion":"1.1.0","linux":{}}`)
	text, err := os.ReadFile(config + ".toml")
	for name, content := range map[string][]byte{"config.toml": text, "cri-base.json": spec,
		"base-runtime-spec.json": spec} {
		err = errors.Join(err, os.WriteFile(filepath.Join(root, "etc/containerd", name), content, 0o600))
	}
	if imported := config + ".d"; containerd.Exists(imported) {
		err = errors.Join(err, os.CopyFS(root, os.DirFS(imported)))
	}
	if err != nil {
		t.Fatal(err)
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
