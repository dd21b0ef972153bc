// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	either "cmp"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/plugin/storedspec/places"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// CRI-O reads crio.conf, and then every file of the folder in the order of their names; the last word counts.
func TestCRIO(t *testing.T) {
	limit := func(l spec.Limit) *spec.Limit { return &l }
	for name, test := range map[string]struct {
		files map[string]string
		want  Runtime
	}{
		"nothing": {nil, Runtime{NRI: NRI{On: true, Socket: places.NRISocket}}},
		"off": {map[string]string{"crio.conf": "[crio.nri]\nenable_nri = false\n"},
			Runtime{NRI: NRI{Off: "enable_nri = false", Socket: places.NRISocket}}},
		"on again": {map[string]string{
			"crio.conf":                         "[crio.nri]\nenable_nri = false\nnri_listen = '/run/a.sock'\n",
			"crio.conf.d/90-rdma-spec-nri.conf": "[crio.nri]\nenable_nri = true\n",
		}, Runtime{NRI: NRI{On: true, Socket: "/run/a.sock"}}},
		"no connections": {map[string]string{
			"crio.conf.d/10":     "[crio.nri]\nnri_disable_connections = true\n",
			"crio.conf.d/20.bak": "[crio.api]\nlisten = '/run/b.sock'\n",
		}, Runtime{NRI: NRI{Off: "nri_disable_connections = true", Socket: places.NRISocket},
			Socket: "/run/b.sock"}},
		"memlock, as signed": {map[string]string{"crio.conf": "[crio.runtime]\ndefault_ulimits = " +
			"['memlock=9223372036854775807']\n"}, Runtime{DefaultMemlock: limit(spec.Unlimited),
			NRI: NRI{On: true, Socket: places.NRISocket}}},
		"memlock": {map[string]string{"crio.conf": "[crio.runtime]\ndefault_ulimits = ['nofile=1:1', " +
			"'memlock=-1:-1']\n"}, Runtime{DefaultMemlock: limit(spec.Unlimited),
			NRI: NRI{On: true, Socket: places.NRISocket}}},
		"taken back": {map[string]string{
			"crio.conf":      "[crio.runtime]\ndefault_ulimits = ['memlock=65536']\n",
			"crio.conf.d/50": "[crio.runtime]\ndefault_ulimits = []\n",
		}, Runtime{NRI: NRI{On: true, Socket: places.NRISocket}}},
	} {
		t.Run(name, func(t *testing.T) {
			root := scratch.Folder(t)
			scratch.Files(t, filepath.Join(root, "etc/crio"), test.files, 0o600)
			var got Runtime
			if err := got.readCRIO(root); err != nil {
				t.Fatal(err)
			}
			test.want.Known, test.want.Socket = true, either.Or(test.want.Socket, places.CRIO.Socket)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
