// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package generate

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// generated runs the command.
func generated(args ...string) (stderr string, err error) {
	cmd := Command()
	var out, notes bytes.Buffer
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&notes)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err = cmd.Execute()
	return notes.String(), err
}

// A list of CRI-O's takes the place of the one before it: the drop-in has the limits of both, or says what replaces it.
func TestCRIOKeepsUlimits(t *testing.T) {
	const ours, nofile = "etc/crio/crio.conf.d/90-rdma-spec.conf", "[crio.runtime]\ndefault_ulimits = [\"nofile=1048576:1048576\"]\n"
	for name, test := range map[string]struct {
		files    map[string]string
		to, want string // the list, or parts of the error, with " … " between them
	}{
		"a drop-in before it": {map[string]string{"etc/crio/crio.conf.d/00-default": nofile}, ours, "nofile=1048576:1048576 memlock=-1:-1"},
		"crio.conf": {map[string]string{"etc/crio/crio.conf": "[crio.runtime]\ndefault_ulimits = [\n  'core=0:0', # none\n  \"MEMLOCK=65536:65536\",\n]\n"}, ours,
			"core=0:0 memlock=-1:-1"},
		"the last of two": {map[string]string{"etc/crio/crio.conf": nofile, "etc/crio/crio.conf.d/10": "[crio.runtime]\ndefault_ulimits = ['nproc=9:9']\n"}, ours,
			"nproc=9:9 memlock=-1:-1"},
		"an empty one":   {map[string]string{"etc/crio/crio.conf": nofile, "etc/crio/crio.conf.d/10": "[crio.runtime]\ndefault_ulimits = []\n"}, ours, "memlock=-1:-1"},
		"its own, again": {map[string]string{ours: "[crio.runtime]\ndefault_ulimits = ['nofile=1:1', 'memlock=7:7']\n"}, ours, "memlock=-1:-1"},
		"one after it":   {map[string]string{"etc/crio/crio.conf.d/99-x": nofile}, ours, "error: 99-x, which CRI-O reads after  … sets default_ulimits: "},
		"after it, no list": {map[string]string{"etc/crio/crio.conf.d/99-x": "[crio.runtime]\nlog_level = 'info'\n", "etc/crio/crio.conf": nofile}, ours,
			"nofile=1048576:1048576 memlock=-1:-1"},
		"a flag": {map[string]string{"etc/crio/crio.conf": "", "etc/systemd/system/crio.service": "[Service]\nExecStart=/usr/bin/crio --default-ulimits nofile=1:1\n"}, ours,
			"error: CRI-O's command line, which CRI-O reads after  … sets default_ulimits: "},
		"a file elsewhere":     {map[string]string{"etc/crio/crio.conf.d/99-x": nofile}, "x.conf", "nofile=1048576:1048576 memlock=-1:-1"},
		"a directory by links": {map[string]string{"srv/crio/crio.conf.d/99-x": nofile, "etc/crio": "-> /srv/crio"}, "srv/crio/crio.conf.d/90-rdma-spec.conf", "error: 99-x, which CRI-O reads after  … sets default_ulimits: "},
		"no CRI-O":             {nil, "x.conf", "memlock=-1:-1"},
		"no list":              {map[string]string{"etc/crio/crio.conf": "[crio.runtime]\ndefault_ulimits = 'nofile=1:1'\n"}, ours, "error: write a list of strings"},
	} {
		t.Run(name, func(t *testing.T) {
			root := scratch.Dir(t, filepath.Dir(test.to))
			scratch.Files(t, root, test.files, 0o600)
			to := filepath.Join(root, test.to)
			notes, err := generated("--for", "crio", "--root", root, "--to", to)
			if part, isError := strings.CutPrefix(test.want, "error: "); isError {
				for part := range strings.SplitSeq(part, " … ") {
					if err == nil || !strings.Contains(err.Error(), part) {
						t.Errorf("%v, want %s", err, part)
					}
				}
				return
			}
			var got struct {
				Crio struct {
					Runtime struct {
						DefaultUlimits []string `toml:"default_ulimits"`
					}
				}
			}
			if err := errors.Join(err, toml.Unmarshal([]byte(scratch.Read(t, to)), &got)); err != nil {
				t.Fatal(err)
			}
			if list := strings.Join(got.Crio.Runtime.DefaultUlimits, " "); list != test.want {
				t.Errorf("%s, want %s", list, test.want)
			}
			if strings.Contains(test.want, " ") != strings.Contains(notes, "default_ulimits replaces the list in ") {
				t.Errorf("it says %q", notes)
			}
		})
	}
}

// A base spec that handlers name is not replaced without a word.
func TestGenerate_baseSpecInUse(t *testing.T) {
	const config, spec = "etc/containerd/config.toml", "etc/containerd/rdma-spec.json"
	handler := func(name, file string) string {
		return fmt.Sprintf("[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.%s]\nbase_runtime_spec = '/%s'\n", name, file)
	}
	const others = `{"ociVersion": "1.1.0", "linux": {}, "hostname": "theirs"}`
	for name, test := range map[string]struct {
		files    map[string]string
		to, want string // a part of the error; "" where it is written
		flags    string
	}{
		"nobody's": {map[string]string{config: "version = 3\n", spec: others}, spec, "", ""},
		"the default's": {map[string]string{config: "version = 3\n" + handler("runc", spec), spec: others}, spec,
			"rdma-spec.json is the base_runtime_spec of runc, so the change would affect all containers of runc: ", ""},
		"two, in an import": {map[string]string{config: "version = 3\nimports = ['x.toml']\n" + handler("runc", spec), spec: others,
			"etc/containerd/x.toml": handler("gpu", spec)}, spec, "is the base_runtime_spec of gpu, runc", ""},
		"with --force":            {map[string]string{config: "version = 3\n" + handler("runc", spec), spec: others}, spec, "", "--force"},
		"by another name":         {map[string]string{config: "version = 2\n" + strings.Replace(handler("runc", "srv/base.json"), "cri.v1.runtime", "grpc.v1.cri", 1), "srv/base.json": "-> /" + spec, spec: others}, spec, "of runc", ""},
		"one that cannot be used": {map[string]string{config: "version = 3\n" + handler("runc", spec), spec: ""}, spec, "", ""},
		"a new file":              {map[string]string{config: "version = 3\n" + handler("runc", spec)}, spec, "", ""},
		"what a later file replaced": {map[string]string{config: "version = 3\nimports = ['x.toml']\n" + handler("runc", spec), spec: others,
			"etc/containerd/x.toml": handler("runc", "etc/other.json")}, spec, "", ""},
		"our own handler's": {map[string]string{config: "version = 3\n" + handler("rdma", "etc/containerd/rdma-spec-rdma.json"),
			"etc/containerd/rdma-spec-rdma.json": others}, "etc/containerd/rdma-spec-rdma.json", "", ""},
		"our own handler's, copied": {map[string]string{config: "version = 3\n" + handler("rdma", "etc/containerd/rdma-spec-rdma.json") +
			handler("nvidia", "etc/containerd/rdma-spec-rdma.json"), "etc/containerd/rdma-spec-rdma.json": others}, "etc/containerd/rdma-spec-rdma.json",
			"is the base_runtime_spec of nvidia", ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := scratch.With(t, test.files, 0o600)
			to := filepath.Join(root, test.to)
			_, err := generated(append([]string{"--root", root, "--to", to}, strings.Fields(test.flags)...)...)
			written := scratch.Read(t, to) != test.files[test.to]
			if (err == nil) != (test.want == "") || written != (err == nil) || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("written: %t, %v; want %s", written, err, test.want)
			}
		})
	}
}

func TestGenerate_immutableNode(t *testing.T) {
	refused := fmt.Errorf("cannot write: %w", syscall.EROFS)
	for name, test := range map[string]struct {
		err               error
		release, to, want string
	}{
		"Talos":        {refused, "NAME=\"Talos\"\nID=talos\n", "etc/containerd/x.json", "generate --for talos to the talos configuration"},
		"Bottlerocket": {refused, "ID=\"bottlerocket\"\n", "etc/x.json", "generate --for bottlerocket to the bottlerocket configuration"},
		"another":      {refused, "ID=flatcar\n", "etc/x.json", "configurations for talos, bottlerocket, and nodeadm"},
		"no release":   {refused, "", "etc/x.json", "configurations for talos, bottlerocket, and nodeadm"},
		"elsewhere":    {refused, "ID=talos\n", "mnt/x.json", ""},
		"a full disk":  {syscall.ENOSPC, "ID=talos\n", "etc/x.json", ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := scratch.Dir(t)
			scratch.File(t, filepath.Join(root, "usr/lib/os-release"), test.release, 0o600)
			got := generateOptions{root: root, to: filepath.Join(root, test.to)}.readOnly(test.err)
			if test.want == "" && !errors.Is(got, test.err) || !strings.Contains(got.Error(), test.want) || !strings.Contains(got.Error(), test.err.Error()) {
				t.Errorf("%v, want %s", got, test.want)
			}
		})
	}
}
