// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/repository"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// What is said of a node is about the next start of its daemons, with the names that files have there.
func TestReadNextStart(t *testing.T) {
	const config, crio = "etc/containerd/config.toml", "etc/crio/crio.conf"
	for name, test := range map[string]struct {
		version string
		files   map[string]string
		want    string // parts of what is wrong with the last runtime
	}{
		"a drop-in of a later version": {"1.7.35", map[string]string{config: "version = 2\nimports = [\"/etc/containerd/conf.d/90-rdma-spec-*.toml\"]\n" +
			"[plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = \"reg.example/pause:3.9\"\n  [plugins.\"io.containerd.grpc.v1.cri\".registry]\n" +
			"    config_path = \"/etc/containerd/certs.d\"\n", "etc/containerd/conf.d/90-rdma-spec-handler-rdma.toml": "version = 2\n" +
			"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.rdma]\n  runtime_type = \"io.containerd.runc.v2\"\n"},
			"ignored: /etc/containerd/config.toml: containerd 1.7.35 does not merge sections: the io.containerd.grpc.v1.cri section in " +
				"/etc/containerd/conf.d/90-rdma-spec-handler-rdma.toml replaces the section in the earlier file and drops registry.config_path, " +
				"sandbox_image"},
		"no version": {"2.2.9", map[string]string{config: "[plugins.cri.containerd.runtimes.nvidia]\n  runtime_type = \"io.containerd.runc.v2\"\n"},
			"ignored: /etc/containerd/config.toml: the file has no version, so containerd 2.2.9 ignores the file's CRI settings: " +
				"run 'containerd --config /etc/containerd/config.toml config migrate', compare the output with " +
				"/etc/containerd/config.toml, and copy"},
		"the name of another version": {"2.2.9", map[string]string{config: "version = 3\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = \"x\"\n"},
			"ignored: /etc/containerd/config.toml: the file has version 3, so containerd 2.2.9 ignores the file's io.containerd.grpc.v1.cri section: " +
				"rename the section in /etc/containerd/config.toml to the name that configuration version 3 uses (for handlers, io.containerd.cri.v1.runtime)"},
		"what containerd refuses": {"2.4.2", map[string]string{config: "\xef\xbb\xbfversion = 2\n"},
			"error: /etc/containerd/config.toml begins with a byte order mark"},
		"a handler without a type": {"2.2.9", map[string]string{config: "version = 3\nimports = ['h.toml']\n", "etc/containerd/h.toml": "version = 3\n" +
			"[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.bare]\nbase_runtime_spec = ''\n"}, "bare of /etc/containerd/h.toml has no type"},
		"CRI-O": {"", map[string]string{crio: "[crio.nri]\nenable_nri = false\n"}, "NRI: enable_nri = false"},
		"a text for a boolean": {"", map[string]string{crio: "[crio.nri]\nenable_nri = \"true\"\n"}, `error: enable_nri in the [crio.nri] ` +
			`section of /etc/crio/crio.conf is "true", which prevents CRI-O from starting: write true or false without quotes`},
		"a number for a list": {"", map[string]string{crio: "", "etc/crio/crio.conf.d/00": "[crio.runtime]\ndefault_ulimits = 'memlock=-1:-1'\n"},
			"error: default_ulimits in the [crio.runtime] section of /etc/crio/crio.conf.d/00 is \"memlock=-1:-1\", which prevents CRI-O from starting: write a list"},
	} {
		t.Run(name, func(t *testing.T) {
			root := scratch.With(t, test.files, 0o600)
			if test.version != "" {
				scratch.File(t, filepath.Join(root, "usr/bin/containerd"), "#!/bin/sh\nexec "+
					repository.Containerd(t, test.version)+" \"$@\"\n", 0o755)
			}
			answer, err := Read(t.Context(), root)
			if err != nil || len(answer.Runtimes) != 1 {
				t.Fatalf("%+v, %v", answer, err)
			}
			r := answer.Runtimes[0]
			got := "error: " + r.ConfigError
			if r.ConfigError == "" {
				got = "NRI: " + r.NRI.Off
			}
			for _, i := range r.Ignored {
				got += "\nignored: " + i.File + ": " + i.Reason + ": " + i.Fix
			}
			for _, h := range r.Handlers {
				if h.NoType {
					got += "\n" + h.Name + " of " + h.File + " has no type"
				}
			}
			if !strings.Contains(got, test.want) || strings.Contains(got, root) {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}
