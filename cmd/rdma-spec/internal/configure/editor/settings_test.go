// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package editor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
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

func TestSettings(t *testing.T) {
	full := containerd.Settings{
		Socket: "/run/containerd/containerd.sock", DefaultHandler: "runc",
		Handlers: []containerd.Setting{
			{Name: "kata"}, {Name: "rdma", BaseSpec: "/etc/containerd/rdma.json", Program: "/usr/bin/crun"},
			{Name: "runc", Program: "runc"},
		},
		NRISocket: "/var/run/nri/nri.sock", RegistrationTimeout: 5 * time.Second, RequestTimeout: 2 * time.Second,
		Validator: true, Required: []string{"rdma"},
	}
	for name, test := range map[string]struct {
		text string
		want containerd.Settings
	}{
		"all":     {effectiveV3, full},
		"nothing": {"", containerd.Settings{NRIOff: "this containerd has no NRI"}},
		"containerd 2.4": {"[plugins.'io.containerd.server.v1.grpc']\naddress = " +
			"'/run/x.sock'\n[plugins.'io.containerd.nri.v1.nri']\n", containerd.Settings{Socket: "/run/x.sock"}},
		"Docker's": {"disabled_plugins = ['cri']\n[plugins.'io.containerd.nri.v1.nri']\n",
			containerd.Settings{CRIDisabled: true}},
		"CRI's newest name": {"disabled_plugins = ['io.containerd.cri.v1.runtime']\n[plugins.'io.containerd.nri.v1.nri']\n",
			containerd.Settings{CRIDisabled: true}},
		"CDI off": {"[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = false\ncdi_spec_dirs = " +
			"['/etc/cdi']\n[plugins.'io.containerd.nri.v1.nri']\n", containerd.Settings{CDIOff: true,
			CDIFolders: []string{"/etc/cdi"}}},
		"CDI on": {"[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = " +
			"true\n[plugins.'io.containerd.nri.v1.nri']\n", containerd.Settings{}},
		"NRI disabled": {"[plugins.'io.containerd.nri.v1.nri']\ndisable = true\n",
			containerd.Settings{NRIOff: "disable = true"}},
		"no connections": {"[plugins.'io.containerd.nri.v1.nri']\ndisable_connections = true\n",
			containerd.Settings{NRIOff: "disable_connections = true"}},
		"NRI not loaded": {"disabled_plugins = ['io.containerd.nri.v1.nri']\n[plugins.'io.containerd.nri.v1.nri']\n",
			containerd.Settings{NRIOff: "disabled_plugins has it"}},
		"types of elsewhere": {"disabled_plugins = 'cri'\n[grpc]\naddress = " +
			"7\n[plugins.'io.containerd.nri.v1.nri']\nplugin_request_timeout = 'soon'\n", containerd.Settings{}},
	} {
		t.Run(name, func(t *testing.T) {
			tree, err := tomledit.Parse([]byte(test.text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, containerd.SettingsOf(tree)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// What the program refuses is told apart from a program that could not be asked.
func TestSettingsOfFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(file, []byte("version = 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, test := range map[string]struct {
		ctx     context.Context
		program containerd.Program
		notRun  bool
	}{
		"no program":     {t.Context(), nil, true},
		"not there":      {t.Context(), containerd.Binary("/nowhere/containerd"), true},
		"no patience":    {canceled, containerd.Binary("/bin/true"), true},
		"it refuses":     {t.Context(), refuses{}, false},
		"prints no toml": {t.Context(), printing("= ="), false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := containerd.Daemon{Name: "containerd", File: file, Program: test.program}.Settings(test.ctx)
			if err == nil || errors.As(err, new(containerd.NotRun)) != test.notRun {
				t.Errorf("%v", err)
			}
		})
	}
	got, err := containerd.Daemon{Name: "containerd", File: file, Program: printing(effectiveV3)}.Settings(t.Context())
	if err != nil || got.DefaultHandler != "runc" {
		t.Errorf("%+v, %v", got, err)
	}
}

// printing is a containerd with this effective configuration.
type printing string

func (p printing) Version(context.Context) (string, error)      { return "2.4.2", nil }
func (p printing) Dump(context.Context, string) ([]byte, error) { return []byte(p), nil }

// refuses is a containerd that cannot load the file.
type refuses struct{ printing }

func (refuses) Dump(context.Context, string) ([]byte, error) {
	return nil, errors.New("failed to load TOML: /etc/containerd/config.toml: expected =")
}

// The containerds of the node print what Settings reads.
func TestSettingsOfInstalledContainerd(t *testing.T) {
	for version, file := range map[string]string{"1.7": "connections-off", "2.2": "nri-off", "2.4": "default"} {
		t.Run(version, func(t *testing.T) {
			program := installed(t, version)
			got, err := containerd.Daemon{Name: "containerd", File: filepath.Join("testdata", version, file+".toml"),
				Program: program}.Settings(t.Context())
			want := map[string]string{"1.7": "disable_connections = true", "2.2": "disable = true", "2.4": ""}[version]
			if err != nil || got.NRIOff != want || got.NRISocket != "/var/run/nri/nri.sock" ||
				got.Socket != "/run/containerd/containerd.sock" ||
				len(got.Handlers) == 0 || got.DefaultHandler != "runc" || got.RequestTimeout != 2*time.Second {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}
