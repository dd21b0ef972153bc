// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// aPlugin are the files of a process of the plugin, in a container that sees the socket of NRI, or not.
func aPlugin(sees bool) map[string]string {
	all := map[string]string{"proc/7/comm": "nri-rdma\n", "proc/7/cmdline": "/nri-rdma\x00", "proc/7/root/etc/x": "",
		"proc/7/exe": "-> root/nri-rdma", "proc/7/root/nri-rdma": ""}
	if sees {
		all["proc/7/mountinfo"] = "30 20 0:25 /nri /var/run/nri rw - tmpfs tmpfs rw\n"
	}
	return all
}

// check compares a plan and an error with what is wanted: files, relative to the root, or parts of the error, with " … "
// between them.
func check(t *testing.T, root string, plan change.Plan, err error, want string) {
	t.Helper()
	if wanted, isError := strings.CutPrefix(want, "error: "); isError {
		for part := range strings.SplitSeq(wanted, " … ") {
			if err == nil || !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want %s", err, part)
			}
		}
		return
	}
	var all []string
	for _, f := range plan {
		all = append(all, strings.TrimPrefix(f.Path, root+"/"))
	}
	if got := strings.Join(all, " "); err != nil || got != want {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
}

func TestCRIONRI(t *testing.T) {
	const ours = "etc/crio/crio.conf.d/90-rdma-spec-nri.conf"
	for name, test := range map[string]struct {
		files map[string]string
		want  string
	}{
		"no CRI-O":         {nil, "error: CRI-O is not installed"},
		"a bare one":       {map[string]string{"etc/crio/crio.conf": ""}, ours},
		"off in crio.conf": {map[string]string{"etc/crio/crio.conf": "[crio.nri]\nenable_nri = false\n"}, ours},
		"off before ours":  {map[string]string{"etc/crio/crio.conf.d/10-x.conf": "[crio.nri]\nenable_nri = false\n"}, ours},
		"off after ours": {map[string]string{"etc/crio/crio.conf.d/99-x.conf": "[crio.nri]\nenable_nri = false\n"},
			"error: 99-x.conf, which CRI-O reads after  … sets enable_nri = false: change the value in "},
		"off and on after ours": {
			map[string]string{"etc/crio/crio.conf.d/98-x": "[crio.nri]\nenable_nri = false\n",
				"etc/crio/crio.conf.d/99-x": "[crio.nri]\nenable_nri = true\n"}, "",
		},
		"on after ours":  {map[string]string{"etc/crio/crio.conf.d/99-x": "[crio.nri]\nenable_nri = true\n"}, ""},
		"on before ours": {map[string]string{"etc/crio/crio.conf": "[crio.nri]\nenable_nri = true\n"}, ""},
		"on without connections": {map[string]string{"etc/crio/crio.conf": "[crio.nri]\nenable_nri = true\n" +
			"nri_disable_connections = true\n"}, ours},
		"on because of ours": {map[string]string{ours: crioNRI, "etc/crio/crio.conf": ""}, ours},
		"on by default":      {map[string]string{"etc/crio/crio.conf": "", "usr/bin/crio": "#!/bin/sh\necho crio version 1.30.2\n"}, ""},
		"off by default":     {map[string]string{"etc/crio/crio.conf": "", "usr/local/bin/crio": "#!/bin/sh\necho crio version 1.29.4\n"}, ours},
		"off by an older file of a newer": {map[string]string{"etc/crio/crio.conf": "[crio.nri]\nenable_nri = false\n",
			"usr/bin/crio": "#!/bin/sh\necho crio version 1.34.0\n"}, ours},
		"off by a flag": {map[string]string{"etc/crio/crio.conf": "", "etc/systemd/system/crio.service": "[Service]\nExecStart=/usr/bin/crio --enable-nri=false\n"},
			"error: CRI-O's command line, which CRI-O reads after  … sets enable_nri = false: change the value in CRI-O's command line"},
		"another directory": {map[string]string{"etc/crio/crio.conf.d/99": "[crio.nri]\nenable_nri = false\n", "opt/d/1": "[crio.nri]\nenable_nri = false\n",
			"etc/systemd/system/crio.service": "[Service]\nExecStart=/usr/bin/crio -d /opt/d\n"}, "opt/d/90-rdma-spec-nri.conf"},
		"not TOML": {map[string]string{"etc/crio/crio.conf.d/10-x.conf": "[crio"}, "error: 10-x.conf: toml: "},
	} {
		t.Run(name, func(t *testing.T) {
			root := scratch.With(t, test.files, 0o700)
			plan, err := CRIONRI(t.Context(), root)
			check(t, root, plan, err, test.want)
		})
	}
}

func TestLimits(t *testing.T) {
	for name, test := range map[string]struct {
		units      []string
		unit, want string
	}{
		"containerd": {[]string{"usr/lib/systemd/system/containerd.service"}, "",
			"etc/systemd/system/containerd.service.d/90-rdma-spec-memlock.conf"},
		"docker by name": {[]string{"lib/systemd/system/docker.service", "lib/systemd/system/containerd.service"},
			"docker.service", "etc/systemd/system/docker.service.d/90-rdma-spec-memlock.conf"},
		"two": {[]string{"lib/systemd/system/docker.service", "etc/systemd/system/containerd.service"}, "",
			"error: (containerd.service, docker.service): specify the unit of the runtime that the kubelet uses"},
		"CRI-O": {[]string{"usr/lib/systemd/system/crio.service"}, "", "etc/systemd/system/crio.service.d/90-rdma-spec-memlock.conf"},
		"MicroK8s": {[]string{"etc/systemd/system/snap.microk8s.daemon-containerd.service"}, "",
			"etc/systemd/system/snap.microk8s.daemon-containerd.service.d/90-rdma-spec-memlock.conf"},
		"none":            {nil, "", "error: systemd has no unit for a supported container runtime"},
		"one that is not": {nil, "docker", "error: systemd has no unit docker.service"},
		"another unit":    {nil, "sshd", `error: "sshd.service" is not a unit of a supported container runtime`},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{}
			for _, unit := range test.units {
				files[unit] = "[Service]\n"
			}
			root := scratch.With(t, files, 0o700)
			plan, unit, err := Limits(root, test.unit, containerd.Find(root))
			check(t, root, plan, err, test.want)
			if err == nil && !strings.Contains(plan[0].Path, unit+".d") {
				t.Errorf("the unit is %s", unit)
			}
		})
	}
}

func TestPlugin(t *testing.T) {
	const config, program, unit, launched = "etc/rdma-spec/config.yaml", "usr/local/bin/nri-rdma",
		"etc/systemd/system/nri-rdma.service", "opt/nri/plugins/90-rdma"
	for name, test := range map[string]struct {
		files    map[string]string
		launched bool
		want     string
	}{
		"a service on a bare node":    {nil, false, strings.Join([]string{config, program, unit}, " ")},
		"a service":                   {map[string]string{config: "memlock: 1Gi"}, false, program + " " + unit},
		"a service beside a launched": {map[string]string{launched: ""}, false, "error: the runtime already launches"},
		"launched on a bare node":     {nil, true, config + " " + launched},
		"launched beside a service":   {map[string]string{unit: ""}, true, "error: already runs the plugin"},
		"a service beside another index": {map[string]string{"opt/nri/plugins/10-rdma": ""}, false,
			"error: the runtime already launches"},
		"launched beside another index": {map[string]string{"opt/nri/plugins/05-nri-rdma": ""}, true, "error: 05-nri-rdma, and two plugins"},
		"launched again":                {map[string]string{config: "", launched: ""}, true, launched},
		"a service beside others":       {map[string]string{config: "", "opt/nri/plugins/10-hca-rdma": ""}, false, program + " " + unit},
		"a service beside a package's": {map[string]string{"usr/lib/systemd/system/nri-rdma.service": ""}, false,
			"error: nri-rdma.service already runs the plugin, and two plugins cannot both set memlock: run systemctl enable --now nri-rdma"},
		"launched beside a package's": {map[string]string{"lib/systemd/system/nri-rdma.service": ""}, true,
			"error: already runs the plugin"},
		"a service again": {map[string]string{config: "", unit: "", "usr/lib/systemd/system/nri-rdma.service": ""}, false,
			program + " " + unit},
		"a service beside a DaemonSet": {aPlugin(true), false,
			"error: the plugin is already running in a container (PID 7)"},
		"launched beside a DaemonSet": {aPlugin(true), true,
			"error: the plugin is already running in a container"},
		"a service beside somebody's program of that name": {aPlugin(false), false,
			strings.Join([]string{config, program, unit}, " ")},
	} {
		t.Run(name, func(t *testing.T) {
			root, from := scratch.With(t, test.files, 0o700), scratch.With(t, map[string]string{"nri-rdma": "\x7fELF"}, 0o700)
			p := programs{filepath.Join(from, "nri-rdma"), usrLocal}
			plan, err := p.Plugin(root, test.launched)
			check(t, root, plan, err, test.want)
			for _, f := range plan {
				if isProgram := string(f.Content) == "\x7fELF"; isProgram != (f.Mode == 0o755) {
					t.Errorf("%s has mode %o", f.Path, f.Mode)
				}
			}
		})
	}
	_, err := (&programs{"/nowhere/nri-rdma", usrLocal}).Plugin(scratch.Dir(t), false)
	check(t, "", nil, err, "error: /nowhere/nri-rdma does not exist")
}

// A drop-in that systemd reads after ours has the last word, wherever it is.
func TestLimitsBesideOthers(t *testing.T) {
	const unit, ours = "usr/lib/systemd/system/containerd.service", "etc/systemd/system/containerd.service.d/90-rdma-spec-memlock.conf"
	for name, test := range map[string]struct{ file, text, want string }{
		"later": {"usr/lib/systemd/system/containerd.service.d/99-x.conf", "[Service]\nLimitMEMLOCK = " +
			"64K\n", "error: 99-x.conf, which systemd reads after  … sets LimitMEMLOCK=64K: change the value in "},
		"at run time":            {"run/systemd/system/containerd.service.d/zz.conf", "[Service]\nLimitMEMLOCK=8M\n", "error: zz.conf, which systemd reads after  … sets LimitMEMLOCK=8M: change the value in "},
		"earlier":                {"etc/systemd/system/containerd.service.d/10-x.conf", "[Service]\nLimitMEMLOCK=64K\n", ours},
		"later, the same":        {"etc/systemd/system/containerd.service.d/99-x.conf", "[Service]\nLimitMEMLOCK=infinity\n", ""},
		"later, in two":          {"etc/systemd/system/containerd.service.d/override.conf", "[Service]\nLimitMEMLOCK=infinity:infinity\n", ""},
		"earlier, in two":        {"etc/systemd/system/containerd.service.d/10-x.conf", "[Service]\nLimitMEMLOCK=8M\nLimitMEMLOCK=infinity:infinity\n", ""},
		"a lower soft one":       {"etc/systemd/system/containerd.service.d/override.conf", "[Service]\nLimitMEMLOCK=64K:infinity\n", "error: override.conf, which systemd reads after  … sets LimitMEMLOCK=64K:infinity: change the value in "},
		"later, taken back":      {"etc/systemd/system/containerd.service.d/override.conf", "[Service]\nLimitMEMLOCK=64K\nLimitMEMLOCK=\n", ours},
		"ours, and nothing else": {ours, "[Service]\nLimitMEMLOCK=infinity\n", ours},
		"no drop-in":             {"etc/systemd/system/containerd.service.d/99-x.bak", "[Service]\nLimitMEMLOCK=64K\n", ours},
	} {
		t.Run(name, func(t *testing.T) {
			root := scratch.With(t, map[string]string{unit: "[Service]\n", test.file: test.text}, 0o700)
			plan, _, err := Limits(root, "", containerd.Find(root))
			check(t, root, plan, err, test.want)
		})
	}
}
