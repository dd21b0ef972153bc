// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cdi"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

func TestCDI_docker(t *testing.T) {
	on, off := true, false
	const printed = "#!/bin/sh\necho 'Docker version 28.3.2, build e77ff99'\n"
	for name, test := range map[string]struct {
		daemon, program string
		want            cdi.Docker
	}{
		"nothing said": {"", printed, cdi.Docker{Version: "28.3.2"}},
		"on": {`{"features": {"cdi": true, "x": "y"}, "cdi-spec-dirs": ["/opt/cdi"]}`, "",
			cdi.Docker{CDI: &on, Dirs: []string{"/opt/cdi"}}},
		"off":      {`{"features": {"cdi": false}}`, "#!/bin/sh\nexit 1\n", cdi.Docker{CDI: &off}},
		"not JSON": {"{", printed, cdi.Docker{Version: "28.3.2", Error: "unexpected end of JSON input"}},
	} {
		t.Run(name, func(t *testing.T) {
			files := aNode().With(hcatest.Files{"usr/lib/systemd/system/docker.service": "", "usr/bin/podman": ""})
			if test.daemon != "" {
				files["etc/docker/daemon.json"] = test.daemon
			}
			dir := files.Root(t)
			if test.program != "" {
				scratch.File(t, filepath.Join(dir, "usr/bin/dockerd"), test.program, 0o755)
			}
			got := known(cdi.Read(t.Context(), dir, nil))
			if diff := cmp.Diff(&test.want, got.Docker); diff != "" || !got.Podman {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if got := known(cdi.Read(t.Context(), aNode().Root(t), nil)); got.Docker != nil || got.Podman {
		t.Errorf("%+v", got)
	}
}
