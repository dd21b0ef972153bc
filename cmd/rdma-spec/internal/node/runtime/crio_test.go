// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	either "cmp"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec/places"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// crioCases are nodes with CRI-O: files of /etc/crio, the flags that its unit starts it with, and what it makes of
// them.
var crioCases = map[string]struct {
	files map[string]string
	flags string // in which ROOT is the node's root
	want  Runtime
}{
	"nothing": {want: Runtime{NRI: NRI{On: true}}},
	"off": {files: map[string]string{"crio.conf": "[crio.nri]\nenable_nri = false\n"},
		want: Runtime{NRI: NRI{Off: "enable_nri = false"}}},
	"on again": {files: map[string]string{
		"crio.conf":                         "[crio.nri]\nenable_nri = false\nnri_listen = '/run/a.sock'\n",
		"crio.conf.d/90-rdma-spec-nri.conf": "[crio.nri]\nenable_nri = true\n",
	}, want: Runtime{NRI: NRI{On: true, Socket: "/run/a.sock"}}},
	"no connections": {files: map[string]string{
		"crio.conf.d/10":     "[crio.nri]\nnri_disable_connections = true\n",
		"crio.conf.d/20.bak": "[crio.api]\nlisten = '/run/b.sock'\n",
	}, want: Runtime{NRI: NRI{Off: "nri_disable_connections = true"}, Socket: "/run/b.sock"}},
	"memlock, as signed": {files: map[string]string{"crio.conf": "[crio.runtime]\ndefault_ulimits = " +
		"['memlock=9223372036854775807']\n"}, want: Runtime{DefaultMemlock: memlock(spec.Unlimited), NRI: NRI{On: true}}},
	"memlock": {files: map[string]string{"crio.conf": "[crio.runtime]\ndefault_ulimits = ['nofile=1:1', " +
		"'memlock=-1:-1']\n"}, want: Runtime{DefaultMemlock: memlock(spec.Unlimited), NRI: NRI{On: true}}},
	"taken back": {files: map[string]string{
		"crio.conf":      "[crio.runtime]\ndefault_ulimits = ['memlock=65536']\n",
		"crio.conf.d/50": "[crio.runtime]\ndefault_ulimits = []\n",
	}, want: Runtime{NRI: NRI{On: true}}},
	"directories in the directory": {files: map[string]string{
		"crio.conf.d/10.d/sub/x": "[crio.nri]\nenable_nri = false\n",
		"crio.conf.d/10.conf":    "[crio.nri]\nenable_nri = true\n", // before 10.d
	}, want: Runtime{NRI: NRI{Off: "enable_nri = false"}}},
	"flags outweigh files": {files: map[string]string{"crio.conf.d/99": "[crio.nri]\nenable_nri = true\n"},
		flags: "--enable-nri=false --nri-listen /run/c.sock --listen=/run/d.sock --default-ulimits nofile=1:1,memlock=65536:65536",
		want: Runtime{DefaultMemlock: memlock(65536), Socket: "/run/d.sock",
			NRI: NRI{Off: "enable_nri = false", Socket: "/run/c.sock"}}},
	"a flag turns it on": {files: map[string]string{"crio.conf": "[crio.nri]\nenable_nri = false\n"}, flags: "--enable-nri",
		want: Runtime{NRI: NRI{On: true}}},
	"another file and directory": {files: map[string]string{
		"crio.conf":      "[crio.nri]\nenable_nri = false\n",
		"crio.conf.d/99": "[crio.nri]\nenable_nri = false\n",
		"mine/conf":      "[crio.nri]\nnri_listen = '/run/a.sock'\n",
		"mine/d/1":       "[crio.api]\nlisten = '/run/b.sock'\n",
	}, flags: "-c ROOT/etc/crio/mine/conf --config-dir=ROOT/etc/crio/mine/d",
		want: Runtime{Config: "/etc/crio/mine/conf", Socket: "/run/b.sock", NRI: NRI{On: true, Socket: "/run/a.sock"}}},
	"a file that is not there": {flags: "-c ROOT/etc/crio/mine/conf",
		want: Runtime{Config: "/etc/crio/mine/conf", ConfigError: "ROOT/etc/crio/mine/conf, which CRI-O's --config flag specifies"}},
}

func memlock(l spec.Limit) *spec.Limit { return &l }

// crioNode lays out a node, and returns the flags for a CRI-O outside of it.
func crioNode(t *testing.T, name string) (root, flags string) {
	t.Helper()
	test := crioCases[name]
	root = scratch.With(t, map[string]string{"etc/systemd/system/crio.service": "[Service]\nEnvironmentFile=/etc/sysconfig/crio\n" +
		"ExecStart=/usr/bin/crio $CRIO_CONFIG_OPTIONS\n",
		"etc/sysconfig/crio": "CRIO_CONFIG_OPTIONS=" + strings.ReplaceAll(test.flags, "ROOT", "") + "\n"}, 0o600)
	scratch.Files(t, filepath.Join(root, "etc/crio"), test.files, 0o600)
	return root, strings.ReplaceAll(test.flags, "ROOT", root)
}

func TestCRIO(t *testing.T) {
	for name, test := range crioCases {
		t.Run(name, func(t *testing.T) {
			root, _ := crioNode(t, name)
			var got Runtime
			err := got.readCRIO(process.ReadTable(root))
			if part := strings.ReplaceAll(test.want.ConfigError, "ROOT", root); part != "" {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("%v, want %s", err, part)
				}
				return
			}
			want := test.want
			want.Known, want.Socket = true, either.Or(want.Socket, places.CRIO.Socket)
			want.Config, want.NRI.Socket = either.Or(want.Config, places.CRIO.Config), either.Or(want.NRI.Socket, places.NRISocket)
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

// The node's CRI-O prints the same configuration, or starts as little.
func TestCRIOPrints(t *testing.T) {
	program := repository.Part(t, "crio-1.34.0-*/crio")
	for name := range crioCases {
		t.Run(name, func(t *testing.T) {
			root, flags := crioNode(t, name)
			var read, printed Runtime
			errRead := read.readCRIO(process.ReadTable(root))
			if !strings.Contains(flags, "-c ") {
				config := filepath.Join(root, places.CRIO.Config)
				if !containerd.Exists(config) {
					config = `""` // unlike the default, one that is named has to be there
				}
				flags += " -c " + config + " -d " + filepath.Join(root, places.CRIO.DropIns)
			}
			text, err := exec.CommandContext(t.Context(), "sh", "-c", program+" "+flags+" config").Output()
			if err != nil || errRead != nil {
				if err == nil || errRead == nil {
					t.Errorf("CRI-O: %v, read: %v", err, errRead)
				}
				return
			}
			copied := scratch.With(t, map[string]string{"etc/crio/crio.conf": string(text)}, 0o600)
			err = printed.readCRIO(process.ReadTable(copied))
			printed.Config, printed.Socket = read.Config, strings.TrimPrefix(printed.Socket, "/var")
			if diff := cmp.Diff(printed, read); diff != "" || err != nil {
				t.Errorf("%v (-printed +read):\n%s", err, diff)
			}
		})
	}
}
