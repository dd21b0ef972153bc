// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package editor

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// someSpec makes a base spec that says what it was made of.
func someSpec(base []byte) ([]byte, error) {
	return []byte(`{"ociVersion": "1.0.2", "linux": {}, "made of": "` + strings.ReplaceAll(string(base),
		`"`, "'") + "\"}\n"), nil
}

func TestHandler(t *testing.T) {
	runsContainerd(t)
	for _, test := range []struct{ config, name, like string }{
		{"1.6/default", "rdma", "runc"},
		{"1.7/default", "rdma", "runc"},
		{"1.7/default", "runc", "runc"},
		{"1.7/missing", "rdma", "runc"},
		{"1.7/gpu-operator", "rdma-nvidia", "nvidia"},
		{"1.7/aks", "runc", "runc"},
		{"1.7/version-1", "rdma", "runc"},
		{"1.7/k3s", "rdma", "runc"},
		{"1.7/kubeadm", "runc", "nvidia"},
		{"2.2/nri-off-version-2", "rdma", "runc"},
		{"2.2/nri-off-version-2", "runc", "runc"},
		{"2.2/k3s", "rdma", "runc"},
		{"2.2/k3s-template", "rdma", "runc"},
		{"2.2/drop-in-off", "rdma", "crun"},
		{"2.2/eks-al2023", "rdma", "nvidia"}, // which has a base spec
		{"2.3/nvidia-drop-in", "rdma-nvidia", "nvidia"},
		{"2.3/nvidia-drop-in", "nvidia", "nvidia"},
		{"2.4/kubespray", "rdma", "runc"},
		{"2.4/missing", "rdma", "runc"},
	} {
		name := strings.Join([]string{test.config, test.name, test.like}, ".")
		t.Run(name, func(t *testing.T) {
			n := newNode(t, test.config)
			handler := func() (change.Plan, error) {
				return ofHandler(n.daemon, test.name, test.like).Handler(t.Context(), someSpec)
			}
			n.applied(t, name, handler, func(effective map[string]any) {
				plugin, all := containerd.Handlers(effective)
				wanted := tomledit.Clone(all[test.like].(map[string]any)) // a test's
				wanted[containerd.BaseSpecKey] = filepath.Join(filepath.Dir(n.daemon.File()), "rdma-spec-"+test.name+".json")
				tomledit.Put(effective, wanted, "plugins", plugin, "containerd", "runtimes", test.name)
			})
		})
	}
}

// changes returns the diff of what is planned.
func changes(t *testing.T, planned func() (change.Plan, error)) string {
	t.Helper()
	plan, err := planned()
	if err != nil {
		t.Fatal(err)
	}
	return plan.Diff()
}

// K3s reads config.toml.tmpl where there is no config-v3.toml.tmpl: a new one would take its place.
func TestHandler_existingTemplates(t *testing.T) {
	runsContainerd(t)
	const theirs = "{{ template \"base\" . }}\n[debug]"
	for name, test := range map[string]struct {
		version string
		files   map[string]string
		want    string // the file and its new beginning, or a part of the error
	}{
		"none, containerd 2.x": {"2.4.2", nil, "config-v3.toml.tmpl " + containerd.DefaultTemplate},
		"none, containerd 1.7": {"1.7.35", nil, "config.toml.tmpl " + containerd.DefaultTemplate},
		"an old one": {"2.4.2", map[string]string{"config.toml.tmpl": theirs, "config.toml": "version = 2\n[debug]"},
			"config.toml.tmpl " + theirs + "\n# rdma-spec configure wrote the following lines, below a line that had no newline at its end\n["},
		"one that others have changed since": {"2.4.2", map[string]string{"config.toml.tmpl": theirs},
			"error: config.toml is older than its template: start k3s once to generate the file, and then rerun this command"},
		"both": {"2.4.2", map[string]string{"config.toml.tmpl": "# old\n", "config-v3.toml.tmpl": "# new\n"},
			"config-v3.toml.tmpl # new\n# rdma-spec configure wrote the following lines\nversion = "},
		"one of its own": {"2.4.2", map[string]string{"config-v3.toml.tmpl": "[debug]\n"}, "config-v3.toml.tmpl imports = "},
		"a base that has the table": {"2.4.2", map[string]string{"config.toml": "version = 3\n" +
			"[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes]\nrdma.runtime_path = ''\n"},
			"error: config.toml already has a handler named \"rdma\""},
	} {
		t.Run(name, func(t *testing.T) {
			root := scratch.With(t, map[string]string{"config.toml": "version = 2\n"}, 0o600)
			scratch.Files(t, root, test.files, 0o600)
			d := containerd.Daemon{Name: "k3s", Config: root + "/config.toml", Template: root + "/config-v3.toml.tmpl",
				Program: containerd.Binary(repository.Containerd(t, test.version))}
			plan, err := ofHandler(d, "rdma", "runc").Handler(t.Context(), someSpec)
			plan = plan.Changed()
			if wanted, isError := strings.CutPrefix(test.want, "error: "); isError {
				if err == nil || !strings.Contains(err.Error(), wanted) {
					t.Errorf("error %v, want %s", err, wanted)
				}
				return
			}
			if err != nil || len(plan) == 0 {
				t.Fatalf("%v, %v", plan, err)
			}
			last := plan[len(plan)-1]
			if got := filepath.Base(last.Path) + " " + string(last.Content); !strings.HasPrefix(got, test.want) ||
				!strings.Contains(plan.Diff(), "runtimes.rdma]\n") {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}
