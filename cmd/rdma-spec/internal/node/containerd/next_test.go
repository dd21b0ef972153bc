// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/test/testing/race"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

const (
	etc  = "etc/containerd/"
	off  = "version = 3\n[plugins.'io.containerd.nri.v1.nri']\n  disable = true\n"
	unit = "usr/lib/systemd/system/containerd.service"
	k3s  = "var/lib/rancher/k3s/agent/etc/containerd/"

	runcV1 = "[plugins.cri.containerd.runtimes.nvidia]\n  runtime_type = \"io.containerd.runc.v2\"\n"
	runcV2 = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n  runtime_type = \"io.containerd.runc.v2\"\n"
	rdmaV2 = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.rdma]\n  runtime_type = \"io.containerd.runc.v2\"\n"
	rdmaV3 = "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.rdma]\n  runtime_type = 'io.containerd.runc.v2'\n"
)

// Of the containerds of a node, the one that runs, or that is meant, is chosen, with its file and its program.
func TestChoose(t *testing.T) {
	const (
		k3sFile = k3s + "config.toml"
		k3sBin  = "var/lib/rancher/k3s/data/current/bin/containerd"
		plain   = etc + "config.toml"
		program = "usr/bin/containerd"
		command = "/usr/bin/containerd\x00--config\x00/opt/x.toml\x00"
	)
	for name, test := range map[string]struct {
		files        map[string]string
		config, want string // the configuration and the program, or a part of the error
	}{
		"none":               {nil, "", "error: found neither a containerd binary in the usual directories under "},
		"one without a file": {map[string]string{program: ""}, "", plain + " " + program},
		"one in /usr/local": {map[string]string{"usr/local/bin/containerd": "", plain: ""}, "",
			plain + " usr/local/bin/containerd"},
		"a file without a program": {map[string]string{plain: ""}, "",
			"error: found no containerd binary under "},
		"K3s": {map[string]string{k3sFile: "", k3sBin: ""}, "", k3sFile + " " + k3sBin},
		"MicroK8s": {map[string]string{"snap/microk8s/current/bin/containerd": ""}, "",
			"var/snap/microk8s/current/args/containerd-template.toml snap/microk8s/current/bin/containerd"},
		"MicroK8s that runs": {map[string]string{"snap/microk8s/current/bin/containerd": "",
			"proc/7/cmdline": "containerd\x00--config\x00/var/snap/microk8s/current/args/containerd.toml\x00"}, "",
			"var/snap/microk8s/current/args/containerd-template.toml snap/microk8s/current/bin/containerd"},
		"MicroK8s that runs, as snapd starts it": {map[string]string{"snap/microk8s/7180/bin/containerd": "", "snap/microk8s/current": "-> 7180",
			"var/snap/microk8s/7180/args/containerd.toml": "", "var/snap/microk8s/current": "-> 7180", "proc/7/exe": "-> /snap/microk8s/7180/bin/containerd",
			"proc/7/cmdline": "/snap/microk8s/7180/bin/containerd\x00--config\x00/var/snap/microk8s/7180/args/containerd.toml\x00"}, "",
			"var/snap/microk8s/7180/args/containerd-template.toml snap/microk8s/7180/bin/containerd"},
		"MicroK8s that runs, by its unit": {map[string]string{"snap/microk8s/7180/bin/containerd": "", "snap/microk8s/current": "-> 7180",
			"var/snap/microk8s/7180/args/containerd.toml": "", "var/snap/microk8s/current": "-> 7180",
			"proc/7/cgroup":  "0::/system.slice/snap.microk8s.daemon-containerd.service\n",
			"proc/7/cmdline": "/snap/microk8s/7179/bin/containerd\x00--config\x00/var/snap/microk8s/7179/args/containerd.toml\x00"}, "",
			"var/snap/microk8s/7180/args/containerd-template.toml snap/microk8s/7180/bin/containerd"},
		"two": {map[string]string{k3sFile: "", k3sBin: "", program: ""}, "",
			"error: the node has 2 containerd installations, containerd (--config /etc/containerd/config.toml), k3s (--config /" +
				k3sFile + "): use --config to select"},
		"two, and one is meant": {map[string]string{k3sFile: "", k3sBin: "", program: ""}, k3sFile, k3sFile + " " + k3sBin},
		"two, by the template": {map[string]string{k3sFile: "", k3sBin: "", program: ""},
			"var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.tmpl", k3sFile + " " + k3sBin},
		"one elsewhere, by its name": {map[string]string{program: ""}, "opt/x.toml", "opt/x.toml " + program},
		"one that runs with its file": {map[string]string{program: "", "proc/7/cmdline": strings.Replace(command,
			"/opt/x.toml", "/"+plain, 1)}, "", plain + " " + program},
		"one that runs with another": {map[string]string{program: "", "proc/7/cmdline": command,
			"proc/7/exe": "-> /usr/bin/containerd"}, "", "error: containerd (--config /opt/x.toml)"},
		"one that runs, and is meant": {map[string]string{program: "", "proc/7/cmdline": command,
			"proc/7/exe": "-> /opt/containerd", "opt/containerd": ""}, "opt/x.toml", "opt/x.toml opt/containerd"},
		"one that runs from elsewhere": {map[string]string{plain: "", "proc/7/cmdline": "containerd\x00--config\x00/" +
			plain + "\x00", "proc/7/exe": "-> /opt/bin/containerd", "opt/bin/containerd": ""}, "",
			plain + " opt/bin/containerd"},
		"one that runs beside another": {map[string]string{program: "", "proc/7/cmdline": "containerd\x00",
			"proc/7/exe": "-> /opt/bin/containerd", "opt/bin/containerd": ""}, "", plain + " opt/bin/containerd"},
		"one that was upgraded": {map[string]string{program: "", "proc/7/cmdline": "containerd\x00",
			"proc/7/exe": "-> /usr/bin/containerd (deleted)"}, "", plain + " " + program},
		"one of a container": {map[string]string{program: "", "proc/7/cmdline": command, "proc/7/root": "-> /proc"},
			"", plain + " " + program},
		"a shim and another that runs": {map[string]string{program: "",
			"proc/7/cmdline": "/usr/bin/containerd-shim-runc-v2\x00-c\x00/x\x00",
			"proc/8/cmdline": "/bin/sh\x00--config=/y\x00"}, "", plain + " " + program},
		"K3s elsewhere, which runs": {
			files: map[string]string{"data/k/agent/etc/containerd/config.toml": "", "proc/7/cgroup": "0::/system.slice/k3s.service\n",
				"proc/7/cmdline": "containerd\x00-c\x00/data/k/agent/etc/containerd/config.toml\x00", "data/k/data/current/bin/containerd": "",
				"usr/lib/systemd/system/k3s.service": ""},
			want: "data/k/agent/etc/containerd/config.toml data/k/data/current/bin/containerd",
		},
		"RKE2 elsewhere, by its configuration": {
			files: map[string]string{"etc/rancher/rke2/config.yaml": "data-dir: /data\n", "data/bin/containerd": ""},
			want:  "data/agent/etc/containerd/config.toml data/bin/containerd",
		},
		"RKE2 elsewhere, by the last file of its configuration": {
			files: map[string]string{"etc/rancher/rke2/config.yaml": "data-dir: /old\n", "etc/rancher/rke2/config.yaml.d/10.yaml": "debug: true\n",
				"etc/rancher/rke2/config.yaml.d/5.yml": "data-dir: /data\n", "data/bin/containerd": ""},
			want: "data/agent/etc/containerd/config.toml data/bin/containerd",
		},
		"K3s elsewhere, by its unit": {
			files: map[string]string{"etc/rancher/k3s/config.yaml": "data-dir: /old\n", "data/data/current/bin/containerd": "",
				"etc/systemd/system/k3s-agent.service": "[Service]\nExecStart=/usr/local/bin/k3s \\\n    agent \\\n\t'--data-dir' \\\n\t'/data' \\\n"},
			want: "data/agent/etc/containerd/config.toml data/data/current/bin/containerd",
		},
	} {
		t.Run(name, func(t *testing.T) {
			for file, line := range maps.Clone(test.files) {
				if dir, isCommand := strings.CutSuffix(file, "/cmdline"); isCommand {
					program, _, _ := strings.Cut(line, "\x00")
					test.files[dir+"/comm"] = fmt.Sprintf("%.15s\n", filepath.Base(program))
				}
			}
			root := scratch.With(t, test.files, 0o600)
			config := ""
			if test.config != "" {
				config = filepath.Join(root, test.config)
			}
			d, err := containerd.Choose(containerd.Find(root), config, root)
			if wanted, isError := strings.CutPrefix(test.want, "error: "); isError {
				if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), root, ""), wanted) {
					t.Errorf("error %v, want %s", err, wanted)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			program, _ := d.Program.(containerd.Binary)
			if got := strings.ReplaceAll(d.File()+" "+string(program), root+"/", ""); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}

// next is what a test expects of a daemon's next start.
type next struct {
	files    string // that it reads, without /etc/containerd/
	handlers string
	nriOff   bool
	ignored  string // the files whose settings do not count
	err      string // a part of it
}

// nodes are configurations that a look at one file, or at names with links resolved, gets wrong.
var nodes = map[string]struct {
	versions string
	files    map[string]string // a link begins with "-> "
	want     next
}{
	"imports of imports": {"2.4.2", map[string]string{
		etc + "config.toml": "version = 3\nimports = [\"/etc/containerd/site.toml\"]\n",
		etc + "site.toml":   "version = 3\nimports = [\"/etc/containerd/site.d/*.toml\"]\n",
		etc + "site.d/off.toml": off + "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.gpu]\n" +
			"  runtime_type = 'io.containerd.runc.v2'\n",
	}, next{files: "config.toml site.toml site.d/off.toml", handlers: "gpu runc", nriOff: true}},
	"imports of imports, merged after all of the first's": {"1.7.35 2.2.9 2.4.2", map[string]string{
		etc + "config.toml": "version = 2\nimports = [\"a.toml\", \"b.toml\"]\n",
		etc + "a.toml":      "version = 2\nimports = [\"sub/c.toml\"]\n[plugins.'io.containerd.nri.v1.nri']\ndisable = false\n",
		etc + "b.toml":      "version = 2\n[plugins.'io.containerd.nri.v1.nri']\ndisable = false\n",
		etc + "sub/c.toml":  "version = 2\nimports = ['../a.toml']\n[plugins.'io.containerd.nri.v1.nri']\ndisable = true\n",
	}, next{files: "config.toml a.toml b.toml sub/c.toml", handlers: "runc", nriOff: true}},
	"relative imports behind a link": {"2.4.2", map[string]string{
		etc + "config.toml":        "-> /opt/site/containerd.toml",
		"opt/site/containerd.toml": "version = 3\nimports = [\"conf.d/*.toml\"]\n",
		etc + "conf.d/50-off.toml": off,
		"opt/site/conf.d/x.toml":   "version = 3\n[plugins.'io.containerd.nri.v1.nri']\n  disable = false\n",
	}, next{files: "config.toml conf.d/50-off.toml", handlers: "runc", nriOff: true}},
	"a directory behind a link": {"1.7.35 2.2.9", map[string]string{
		etc + "config.toml":    "version = 2\nimports = [\"conf.d/*.toml\"]\n",
		etc + "conf.d":         "-> ../../srv/drop",
		"srv/drop/a.toml":      "version = 2\nimports = ['../b.toml']\n",
		etc + "b.toml":         "version = 2\n[plugins.'io.containerd.nri.v1.nri']\ndisable = true\n",
		"srv/b.toml":           "version = 2\n[plugins.'io.containerd.nri.v1.nri']\ndisable = false\n",
		"srv/drop/ignored.txt": "=",
	}, next{files: "config.toml conf.d/a.toml b.toml", handlers: "runc", nriOff: true}},
	"the unit names another file": {"2.4.2", map[string]string{
		unit:                  "[Service]\nExecStart=/usr/bin/containerd --config /etc/cri/config.toml\n",
		etc + "config.toml":   "version = 3\n[plugins.'io.containerd.nri.v1.nri']\ndisable = false\n",
		"etc/cri/config.toml": off,
	}, next{files: "/etc/cri/config.toml", handlers: "runc", nriOff: true}},
	"a drop-in of the unit names another file, with a variable": {"2.2.9", map[string]string{
		unit: "[Service]\nExecStart=/usr/bin/containerd\n",
		"etc/systemd/system/containerd.service.d/10-a.conf": "[Service]\nEnvironment=\"ARGS=-c /etc/cri/config.toml\"\n" +
			"ExecStart=\nExecStart=-/usr/bin/containerd \\\n  $ARGS --log-level=warn\n",
		"usr/lib/systemd/system/containerd.service.d/10-a.conf": "[Service]\nExecStart=/nowhere\n",
		etc + "config.toml":   "version = 3\n",
		"etc/cri/config.toml": off,
	}, next{files: "/etc/cri/config.toml", handlers: "runc", nriOff: true}},
	"the unit names a file that is missing": {"1.7.35 2.4.2", map[string]string{
		unit: "[Service]\nExecStart=/usr/bin/containerd --config=/etc/cri/config.toml\n",
	}, next{err: "/etc/cri/config.toml does not exist, but the daemon is started with --config /etc/cri/config.toml"}},
	"a named import is missing": {"1.7.35 2.2.9 2.4.2", map[string]string{
		etc + "config.toml": "version = 2\nimports = ['/etc/containerd/none/*.toml', '/etc/containerd/x.toml']\n",
	}, next{files: "config.toml", err: "config.toml imports /etc/containerd/x.toml, which does not exist, so containerd does not start"}},
	"an import of an import is missing": {"2.4.2", map[string]string{
		etc + "config.toml": "version = 3\nimports = ['a.toml']\n", etc + "a.toml": "version = 3\nimports = ['b?.toml']\n",
		etc + "b1.toml": off,
	}, next{files: "config.toml a.toml", err: "a.toml imports /etc/containerd/b?.toml, which does not exist"}},
	"a pattern takes a directory": {"1.7.35 2.4.2", map[string]string{
		etc + "config.toml": "version = 2\nimports = ['/etc/containerd/*']\n", etc + "conf.d/x.toml": "",
	}, next{err: `config.toml imports "/etc/containerd/*", which matches the directory /etc/containerd/conf.d and prevents containerd ` +
		"from starting: import /etc/containerd/*.toml"}},
	"a pattern takes a base spec": {"1.7.35 2.4.2", map[string]string{
		etc + "config.toml": "version = 2\nimports = ['/etc/containerd/r*']\n", etc + "rdma-spec-rdma.json": "{}\n",
	}, next{files: "config.toml rdma-spec-rdma.json", err: `imports "/etc/containerd/r*", which also matches ` +
		"a file that is not TOML (/etc/containerd/rdma-spec-rdma.json), so containerd does not start: import /etc/containerd/*.toml"}},
	"a byte order mark, which 1.7 reads": {"1.7.35", map[string]string{
		etc + "config.toml": "\xef\xbb\xbfversion = 2\nimports = ['a.toml']\n",
		etc + "a.toml":      "\xef\xbb\xbfversion = 2\n[plugins.'io.containerd.nri.v1.nri']\ndisable = false\n",
	}, next{files: "config.toml a.toml", handlers: "runc"}},
	"a byte order mark, which 2.x refuses": {"2.2.9 2.4.2", map[string]string{
		etc + "config.toml": "\xef\xbb\xbfversion = 2\n[grpc]\n  uid = 0\n",
	}, next{files: "config.toml", err: "config.toml begins with a byte order mark, which containerd 2.x refuses: remove the mark with " +
		`sed -i '1s/^\xEF\xBB\xBF//'`}},
	"keys that it does not know": {"2.2.9 2.4.2", map[string]string{
		etc + "config.toml": "version = 2\n" + runcV2 + "  runtime_engine = ''\n  runtime_typ = 'x'\n[plugins.'io.containerd.nri.v1.nri']\n  disabled = true\n",
	}, next{files: "config.toml", handlers: "runc", ignored: "config.toml: disabled\nconfig.toml: containerd.runtimes.runc.runtime_typ"}},
	"a byte order mark of an import": {"2.4.2", map[string]string{
		etc + "config.toml": "version = 3\nimports = ['a.toml']\n", etc + "a.toml": "\xef\xbb\xbfversion = 3\n",
	}, next{files: "config.toml a.toml", err: "a.toml begins with a byte order mark"}},
	"a version that is not read": {"1.7.35 2.2.9", map[string]string{etc + "config.toml": "version = 2\nimports = ['a.toml']\n", etc + "a.toml": "version = 4\n"},
		next{files: "config.toml a.toml", err: "a.toml has version 4, which containerd "}},
	"an import that is not TOML": {"1.7.35 2.4.2", map[string]string{etc + "config.toml": "version = 2\nimports = ['a.toml']\n", etc + "a.toml": "[x]\n[x]\n"},
		next{files: "config.toml a.toml", err: "a.toml: "}},
	"an import with a text for a number": {"1.7.35 2.4.2", map[string]string{etc + "config.toml": "version = 2\nimports = ['a.toml']\n",
		etc + "a.toml": "version = 2\noom_score = '1'\n"}, next{files: "config.toml a.toml", err: "a.toml: "}},
	"an import with a text for a boolean of a plugin": {"2.4.2", map[string]string{etc + "config.toml": "version = 2\nimports = ['a.toml']\n",
		etc + "a.toml": "version = 2\n[plugins.'io.containerd.nri.v1.nri']\ndisable = 'true'\n"}, next{files: "config.toml a.toml", err: "a.toml: "}},
	"a drop-in of 2.x under 1.7": {"1.7.35", map[string]string{
		etc + "config.toml": "version = 2\nimports = ['conf.d/*.toml']\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = 'x'\n" +
			runcV2 + "[plugins.'io.containerd.nri.v1.nri']\ndisable = false\n",
		etc + "conf.d/90-rdma-spec-handler-rdma.toml": rdmaV2,
	}, next{files: "config.toml conf.d/90-rdma-spec-handler-rdma.toml", handlers: "rdma", ignored: "config.toml: " +
		"containerd.runtimes.runc.runtime_type sandbox_image"}},
	"a drop-in that has all of the section": {"1.7.35", map[string]string{
		etc + "config.toml": "version = 2\nimports = ['99.toml']\n" + runcV2,
		etc + "99.toml":     rdmaV2 + runcV2,
	}, next{files: "config.toml 99.toml", handlers: "rdma runc", nriOff: true}},
	"a drop-in under a version that merges": {"2.2.9 2.4.2", map[string]string{
		etc + "config.toml": "version = 2\nimports = ['99.toml']\n" + runcV2, etc + "99.toml": rdmaV2,
	}, next{files: "config.toml 99.toml", handlers: "rdma runc"}},
	"no version": {"2.2.9", map[string]string{etc + "config.toml": runcV1},
		next{files: "config.toml", handlers: "runc", ignored: "config.toml:"}},
	"no version, and CRI by its name in version 2": {"1.7.35", map[string]string{etc + "config.toml": strings.ReplaceAll(runcV2, "runc]", "old]")},
		next{files: "config.toml", handlers: "runc", nriOff: true, ignored: "config.toml:"}},
	"CRI by its name in version 2": {"2.2.9", map[string]string{etc + "config.toml": "version = 3\n" + strings.ReplaceAll(runcV2, "runc]", "old]")},
		next{files: "config.toml", handlers: "runc", ignored: "config.toml:"}},
	"CRI by its name in version 2, which is migrated": {"2.4.2", map[string]string{etc + "config.toml": "version = 3\n" +
		strings.ReplaceAll(runcV2, "runc]", "old]")}, next{files: "config.toml", handlers: "old runc"}},
	"CRI by its names in versions 2 and 3": {"2.2.9 2.4.2", map[string]string{etc + "config.toml": rdmaV3 + strings.ReplaceAll(runcV2, "runc]", "old]")},
		next{files: "config.toml", handlers: "rdma runc", ignored: "config.toml:"}},
	"CRI by its name in version 3": {"1.7.35", map[string]string{etc + "config.toml": strings.Replace(rdmaV3, "3", "2", 1)},
		next{files: "config.toml", handlers: "runc", nriOff: true, ignored: "config.toml:"}},
	"CRI by its name in version 3, which counts": {"2.2.9 2.4.2", map[string]string{etc + "config.toml": strings.Replace(rdmaV3, "3", "2", 1)},
		next{files: "config.toml", handlers: "rdma runc"}},
	"what has kept its name": {"2.2.9 2.4.2", map[string]string{etc + "config.toml": rdmaV3 + "[plugins.'io.containerd.grpc.v1.cri']\nstream_server_port = '1'\n"},
		next{files: "config.toml", handlers: "rdma runc"}},
	"no version, in an import": {"2.2.9", map[string]string{
		etc + "config.toml": "version = 3\nimports = ['old.toml']\n", etc + "old.toml": "[plugins.cri]\nsandbox_image = 'x'\n",
	}, next{files: "config.toml old.toml", handlers: "runc", ignored: "old.toml:"}},
	"no version, and NRI by the name that 1.x had": {"2.2.9", map[string]string{etc + "config.toml": "[plugins.nri]\ndisable = true\n"},
		next{files: "config.toml", handlers: "runc"}},
	"no version, and no CRI": {"1.7.35", map[string]string{etc + "config.toml": "oom_score = 0\n[plugins.nri]\ndisable = true\n"},
		next{files: "config.toml", handlers: "runc", nriOff: true}},
	"a newer drop-in than its configuration": {"2.2.9", map[string]string{
		etc + "config.toml": "version = 2\nimports = ['99.toml']\n" + strings.ReplaceAll(runcV2, "runc]", "old]"), etc + "99.toml": rdmaV3,
	}, next{files: "config.toml 99.toml", handlers: "rdma runc", ignored: "config.toml:"}},
	"each file is migrated": {"2.4.2", map[string]string{
		etc + "config.toml": "version = 2\nimports = ['99.toml']\n" + strings.ReplaceAll(runcV2, "runc]", "old]"), etc + "99.toml": rdmaV3,
	}, next{files: "config.toml 99.toml", handlers: "old rdma runc"}},
	"an import that has no version": {"2.4.2", map[string]string{
		etc + "config.toml": "version = 3\nimports = ['99.toml']\n",
		etc + "99.toml":     "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.rdma]\n  runtime_type = 'io.containerd.runc.v2'\n",
	}, next{files: "config.toml 99.toml", handlers: "rdma runc"}},
}

// answer is what the model says.
func answer(t *testing.T, root string) (next, map[string]any) {
	t.Helper()
	d, err := containerd.Choose(containerd.Find(root), "", root)
	if err != nil {
		t.Fatal(err)
	}
	var got next
	all, err := d.Files(t.Context(), nil)
	var names, ignored []string
	for _, f := range all {
		names = append(names, strings.TrimPrefix(f.Name, "/"+etc))
	}
	tree, dumped := d.Effective(t.Context(), nil)
	if err == nil {
		err = dumped
	}
	if err != nil {
		got.err = err.Error()
	} else {
		for _, i := range d.Ignored(t.Context(), all, tree) {
			ignored = append(ignored, strings.TrimPrefix(i.Name, "/"+etc)+": "+strings.Join(i.Lost, " "))
		}
		_, handlers := containerd.Handlers(tree)
		got.handlers = strings.Join(slices.Sorted(maps.Keys(handlers)), " ")
		value, _ := tomledit.Lookup(tree, "plugins", containerd.NRIPlugin, "disable")
		got.nriOff, _ = value.(bool)
	}
	got.files, got.ignored = strings.Join(names, " "), strings.TrimSpace(strings.Join(ignored, "\n"))
	return got, tree
}

// The answer is that of the daemon on the node itself: what it dumps there, or that it does not start.
func TestNextStart(t *testing.T) {
	if race.Detector {
		t.Skip("runs containerd again and again, and the race detector does not see it")
	}
	installed := programs(t)
	for name, test := range nodes {
		for version := range strings.FieldsSeq(test.versions) {
			t.Run(name+"/"+version, func(t *testing.T) {
				t.Parallel()
				root := aNode(t, installed[version], test.files)
				got, tree := answer(t, root)
				if !strings.Contains(got.err, test.want.err) || (got.err == "") != (test.want.err == "") || strings.Contains(got.err, "\n") {
					t.Errorf("error %q, want %q", got.err, test.want.err)
				}
				want := test.want
				if want.err = got.err; want.files == "" {
					want.files = got.files // those before the error
				}
				if diff := cmp.Diff(want, got, cmp.AllowUnexported(next{})); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				if os.Geteuid() == 0 {
					starts(t, root, tree)
				}
				here, err := os.Getwd()
				if err != nil {
					t.Fatal(err)
				}
				below, err := filepath.Rel(here, root)
				if err != nil {
					t.Fatal(err)
				}
				relative, _ := answer(t, below)
				if diff := cmp.Diff(got, relative, cmp.AllowUnexported(next{})); diff != "" {
					t.Errorf("below a relative root (-absolute +relative):\n%s", diff)
				}
			})
		}
	}
}

// aNode returns a directory with files and a containerd, which runs inside of it as well.
func aNode(t *testing.T, program string, files map[string]string) (root string) {
	t.Helper()
	if program == "" {
		t.Skip("no such containerd: `make e2e` builds it for the node")
	}
	root = scratch.Dir(t, "usr/bin")
	scratch.Files(t, root, files, 0o600)
	if err := os.Link(program, filepath.Join(root, "usr/bin/containerd")); err != nil {
		t.Fatal(err)
	}
	return root
}

// starts compares what is said of a node with what its containerd does there: a tree, or nil where it does not start.
func starts(t *testing.T, root string, want map[string]any) {
	t.Helper()
	var config []string
	if text, _ := os.ReadFile(filepath.Join(root, unit)); bytes.Contains(text, []byte("/etc/cri")) ||
		containerd.Exists(filepath.Join(root, "etc/cri")) {
		config = []string{"--config", "/etc/cri/config.toml"}
	}
	inside := func(args ...string) ([]byte, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, "/usr/bin/containerd", append(config, args...)...)
		cmd.SysProcAttr, cmd.Dir = &syscall.SysProcAttr{Chroot: root}, "/"
		out, err := cmd.Output()
		if ctx.Err() != nil {
			t.Fatalf("%v does not end", cmd.Args)
		}
		return out, err
	}
	if want == nil {
		if out, err := inside(); err == nil {
			t.Errorf("containerd starts: %s", out)
		}
		return
	}
	text, err := inside("config", "dump")
	if err != nil {
		t.Fatal(err)
	}
	got, err := tomledit.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	delete(got, "imports")
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("not what containerd dumps (-dumped +said):\n%s", diff)
	}
}

// programs are the containerds that were built for the node of the tests, by their versions, where the nodes of a test
// are: these have links to them.
func programs(t *testing.T) map[string]string {
	t.Helper()
	dir, all := scratch.Dir(t), map[string]string{}
	cache, _ := os.UserCacheDir() // without one, there are none
	for _, version := range []string{"1.7.35", "2.2.9", "2.4.2"} {
		found, _ := filepath.Glob(filepath.Join(cache, "rdma-spec", "containerd-"+version+"*", "containerd"))
		if len(found) == 0 {
			continue
		}
		program, err := os.ReadFile(found[len(found)-1])
		all[version] = filepath.Join(dir, version)
		if err == nil {
			err = os.WriteFile(all[version], program, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}
