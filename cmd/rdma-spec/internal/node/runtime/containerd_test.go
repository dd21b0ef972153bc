// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec/places"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

const effectiveV3 = `
version = 3
disabled_plugins = []
[grpc]
  address = '/run/containerd/containerd.sock'
[plugins.'io.containerd.cri.v1.runtime'.containerd]
  default_runtime_name = 'runc'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
  base_runtime_spec = ''
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
    BinaryName = ''
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.rdma]
  runtime_type = 'io.containerd.runc.v2'
  base_runtime_spec = '/etc/containerd/rdma.json'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.rdma.options]
    BinaryName = '/usr/bin/crun'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.kata]
  runtime_type = 'io.containerd.kata.v2'
[plugins.'io.containerd.nri.v1.nri']
  disable = false
  disable_connections = false
  socket_path = '/var/run/nri/nri.sock'
  plugin_registration_timeout = '5s'
  plugin_request_timeout = '2s'
  [plugins.'io.containerd.nri.v1.nri'.default_validator]
    enable = true
    required_plugins = ['rdma']
`

func TestContainerd(t *testing.T) {
	full := Runtime{
		Socket: "/run/containerd/containerd.sock", DefaultHandler: "runc",
		Handlers: []Handler{
			{Name: "kata", Sandboxed: true}, {Name: "rdma", BaseSpec: "/etc/containerd/rdma.json", Program: "/usr/bin/crun"},
			{Name: "runc", Program: "runc"},
		},
		NRI: NRI{Socket: "/var/run/nri/nri.sock", RegistrationTimeout: 5 * time.Second, RequestTimeout: 2 * time.Second,
			Validator: true, Required: []string{"rdma"}},
	}
	for name, test := range map[string]struct {
		text string
		want Runtime
	}{
		"all":     {effectiveV3, full},
		"nothing": {"", Runtime{NRI: NRI{Off: "this version of containerd does not support NRI"}}},
		"containerd 2.4": {"[plugins.'io.containerd.server.v1.grpc']\naddress = " +
			"'/run/x.sock'\n[plugins.'io.containerd.nri.v1.nri']\n", Runtime{Socket: "/run/x.sock"}},
		"Docker's": {"disabled_plugins = ['cri']\n[plugins.'io.containerd.nri.v1.nri']\n",
			Runtime{CRIDisabled: true}},
		"CRI's newest name": {"disabled_plugins = ['io.containerd.cri.v1.runtime']\n[plugins.'io.containerd.nri.v1.nri']\n",
			Runtime{CRIDisabled: true}},
		"CDI off": {"[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = false\ncdi_spec_dirs = " +
			"['/etc/cdi']\n[plugins.'io.containerd.nri.v1.nri']\n", Runtime{CDIOff: true,
			CDIDirs: []string{"/etc/cdi"}}},
		"CDI on": {"[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = " +
			"true\n[plugins.'io.containerd.nri.v1.nri']\n", Runtime{}},
		"NRI disabled": {"[plugins.'io.containerd.nri.v1.nri']\ndisable = true\n",
			Runtime{NRI: NRI{Off: "disable = true"}}},
		"no connections": {"[plugins.'io.containerd.nri.v1.nri']\ndisable_connections = true\n",
			Runtime{NRI: NRI{Off: "disable_connections = true"}}},
		"NRI not loaded": {"disabled_plugins = ['io.containerd.nri.v1.nri']\n[plugins.'io.containerd.nri.v1.nri']\n",
			Runtime{NRI: NRI{Off: "NRI is in disabled_plugins"}}},
		"types of elsewhere": {"disabled_plugins = 'cri'\n[grpc]\naddress = " +
			"7\n[plugins.'io.containerd.nri.v1.nri']\nplugin_request_timeout = 'soon'\n", Runtime{}},
	} {
		t.Run(name, func(t *testing.T) {
			tree, err := tomledit.Parse([]byte(test.text))
			if err != nil {
				t.Fatal(err)
			}
			var got Runtime
			got.readContainerd(tree, nil)
			test.want.Known, test.want.NRI.On = true, test.want.NRI.Off == ""
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// The containerds of the node print what is read.
func TestInstalledContainerd(t *testing.T) {
	for version, file := range map[string]string{"1.7": "connections-off", "2.2": "nri-off", "2.4": "default"} {
		t.Run(version, func(t *testing.T) {
			config, err := filepath.Abs(filepath.Join("../../configure/editor/testdata", version, file+".toml"))
			if err != nil {
				t.Fatal(err)
			}
			d := containerd.Daemon{Config: config, Program: containerd.Binary(repository.Containerd(t, version))}
			tree, err := d.Effective(t.Context(), nil)
			var got Runtime
			got.readContainerd(tree, nil)
			want := map[string]string{"1.7": "disable_connections = true", "2.2": "disable = true", "2.4": ""}[version]
			if err != nil || got.NRI.Off != want || got.NRI.Socket != "/var/run/nri/nri.sock" ||
				got.Socket != "/run/containerd/containerd.sock" ||
				len(got.Handlers) == 0 || got.DefaultHandler != "runc" || got.NRI.RequestTimeout != 2*time.Second {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

// A program that a copy of a node names is the copy's, and not one of this machine.
func TestHandler_programOfCopy(t *testing.T) {
	const crun = "#!/bin/sh\necho crun version %s\n"
	root, here := scratch.Dir(t), scratch.Dir(t)
	scratch.File(t, root+"/usr/bin/crun", fmt.Sprintf(crun, "1.15"), 0o700)
	scratch.File(t, root+"/opt/crun", fmt.Sprintf(crun, "1.16"), 0o700)
	scratch.File(t, here+"/crun", fmt.Sprintf(crun, "1.8"), 0o700)
	for program, want := range map[string]string{"crun": "crun 1.15", "/opt/crun": "crun 1.16", here + "/crun": "crun"} {
		n, h := node{root: root}, Handler{Program: program}
		if n.handler(t.Context(), &h); h.Program != want {
			t.Errorf("%s: it is %q, want %q", program, h.Program, want)
		}
	}
}

// On a node whose root is mounted elsewhere, absolute links lead where they lead on the node.
func TestNode_absoluteLinks(t *testing.T) {
	root := scratch.With(t, map[string]string{"var/run": "-> /run", "etc": "-> /opt", "opt/base.json": `{"ociVersion": "1.2.0", ` +
		`"linux": {}, "process": {"rlimits": [{"type": "RLIMIT_MEMLOCK", "hard": 65536, "soft": 65536}]}}`}, 0o600)
	scratch.Socket(t, filepath.Join(root, "run/nri/nri.sock"))
	n := node{root: root}
	r := Runtime{NRI: NRI{Socket: places.NRISocket}}
	if n.nri(&r); !r.NRI.SocketExists {
		t.Error("NRI's socket is not found")
	}
	h := Handler{BaseSpec: "/etc/base.json"}
	if n.handler(t.Context(), &h); h.Error != "" || h.Memlock == nil || *h.Memlock != 65536 {
		t.Errorf("the base spec: %+v", h)
	}
}
