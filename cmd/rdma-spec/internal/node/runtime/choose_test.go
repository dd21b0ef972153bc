// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// Of several runtimes, the kubelet's endpoint says which one is meant; else the one that serves CRI, if it is one.
func TestChoose(t *testing.T) {
	const (
		program  = "usr/bin/containerd"
		config   = "etc/containerd/config.toml"
		k3s      = "var/lib/rancher/k3s/data/current/bin/containerd"
		rke2     = "var/lib/rancher/rke2/bin/containerd"
		crio     = "etc/crio/crio.conf"
		kubelet  = "usr/lib/systemd/system/kubelet.service"
		start    = "[Service]\nExecStart=/usr/bin/kubelet $ARGS\n"
		endpoint = "containerRuntimeEndpoint: unix://"
	)
	for name, test := range map[string]struct {
		files           map[string]string
		runtime, config string
		want            string // cri-o, the containerd's platform, or a part of the error
	}{
		"containerd":                            {map[string]string{program: ""}, "", "", "containerd"},
		"CRI-O":                                 {map[string]string{crio: ""}, "", "", "cri-o"},
		"CRI-O beside a containerd without CRI": {map[string]string{program: "", config: "disabled_plugins = [\"cri\"]\n", crio: ""}, "", "", "cri-o"},
		"CRI-O beside a containerd whose import turns CRI off": {map[string]string{program: "", config: "version = 2\nimports = ['docker.toml']\n",
			"etc/containerd/docker.toml": "disabled_plugins = ['io.containerd.grpc.v1.cri']\n", crio: ""}, "", "", "cri-o"},
		"CRI-O beside another": {map[string]string{program: "", config: "", crio: ""}, "", "",
			"error: the node has CRI-O (--runtime crio) and containerd (--runtime containerd --config "},
		"CRI-O's newer file beside another":          {map[string]string{program: "", "etc/crio/crio.conf.d/10-crio.conf": ""}, "", "", "error: CRI-O (--runtime crio) and containerd"},
		"CRI-O's directory, which another tool made": {map[string]string{program: "", "etc/crio/crio.conf.d/99-nvidia.toml": ""}, "", "", "containerd"},
		"CRI-O, by name":                             {map[string]string{program: ""}, NameCRIO, "", "cri-o"},
		"containerd, by name":                        {map[string]string{program: "", crio: ""}, NameContainerd, "", "containerd"},
		"containerd, by its configuration":           {map[string]string{program: "", crio: ""}, "", config, "containerd"},
		"CRI-O, by the kubelet's configuration": {map[string]string{program: "", crio: "", "var/lib/kubelet/config.yaml": endpoint + "/var/run/crio/crio.sock\n"},
			"", "", "cri-o"},
		"CRI-O elsewhere, by the kubelet's configuration": {map[string]string{program: "", crio: "[crio.api]\nlisten = '/run/x.sock'\n",
			"var/lib/kubelet/config.yaml": endpoint + "/run/x.sock\n"}, "", "", "cri-o"},
		"containerd, by its unit": {map[string]string{program: "", crio: "", kubelet: "[Service]\nExecStart=/usr/bin/kubelet " +
			"--container-runtime-endpoint=unix:///run/containerd/containerd.sock\n"}, "", "", "containerd"},
		"containerd, by what kubeadm adds": {map[string]string{program: "", crio: "", kubelet: start, "var/lib/kubelet/kubeadm-flags.env": "KUBELET_KUBEADM_ARGS=\"" +
			"--container-runtime-endpoint=unix:///run/containerd/containerd.sock --x\"\n"}, "", "", "containerd"},
		"containerd elsewhere, by a configuration elsewhere": {map[string]string{program: "", crio: "", kubelet: start, config: "version = 2\n[grpc]\naddress = '/run/y.sock'\n",
			kubelet + ".d/10.conf": "[Service]\nEnvironment='ARGS=--config=/etc/k.yaml --config-dir /etc/k.d'\n",
			"etc/k.yaml":           endpoint + "/run/crio/crio.sock\n", "etc/k.d/10.conf": endpoint + "/run/y.sock\n", "etc/k.d/20.conf": "maxPods: 3\n"}, "", "", "containerd"},
		"the kubelet that runs": {map[string]string{program: "", crio: "", kubelet: "[Service]\nExecStart=/usr/bin/kubelet --container-runtime-endpoint=/run/crio/crio.sock\n",
			"proc/7/comm": "kubelet\n", "proc/7/cmdline": "kubelet\x00--container-runtime-endpoint\x00unix:///run/containerd/containerd.sock\x00"}, "", "", "containerd"},
		"K3s, beside Docker's containerd":         {map[string]string{program: "", config: "disabled_plugins = [\"cri\"]\n", k3s: ""}, "", "", "k3s"},
		"two containerds":                         {map[string]string{program: "", k3s: ""}, "", "", "error: the node has 2 containerd installations"},
		"one of two containerds, by the endpoint": {map[string]string{program: "", k3s: "", "var/lib/kubelet/config.yaml": endpoint + "/run/k3s/containerd/containerd.sock\n"}, "", "", "k3s"},
		"an endpoint that is neither's":           {map[string]string{program: "", k3s: "", "var/lib/kubelet/config.yaml": endpoint + "/run/cri-dockerd.sock\n"}, "", "", "error: the kubelet uses /run/cri-dockerd.sock, "},
		"one containerd, and an endpoint that is not its": {map[string]string{program: "", "var/lib/kubelet/config.yaml": endpoint + "/run/cri-dockerd.sock\n"}, "", "",
			"error: the kubelet uses /run/cri-dockerd.sock, "},
		"a containerd for a handler, and an endpoint that is not its": {map[string]string{program: "", "var/lib/kubelet/config.yaml": endpoint + "/run/cri-dockerd.sock\n"},
			NameContainerd, "", "error: the kubelet uses /run/cri-dockerd.sock, "},
		"one containerd behind a proxy, by its configuration": {map[string]string{program: "", "var/lib/kubelet/config.yaml": endpoint + "/run/proxy.sock\n"}, "", config, "containerd"},
		"RKE2, where K3s has left its directory": {map[string]string{k3s: "", rke2: "", "usr/local/lib/systemd/system/rke2-server.service": "[Service]\n",
			"var/lib/kubelet/config.yaml": endpoint + "/run/k3s/containerd/containerd.sock\n"}, "", "", "rke2"},
		"RKE2 that runs, beside K3s' unit": {map[string]string{k3s: "", rke2: "", "usr/local/lib/systemd/system/k3s.service": "[Service]\n",
			"var/lib/kubelet/config.yaml": endpoint + "/run/k3s/containerd/containerd.sock\n", "proc/7/comm": "containerd\n",
			"proc/7/cmdline": "containerd\x00-c\x00/var/lib/rancher/rke2/agent/etc/containerd/config.toml\x00"}, "", "", "rke2"},
		"a containerd without CRI, and nothing beside": {map[string]string{program: "", config: "disabled_plugins = [\"cri\"]\n"}, "", "", "containerd"},
		"none": {nil, "", "", "error: found neither a containerd binary in the usual directories under"},
	} {
		t.Run(name, func(t *testing.T) {
			root := scratch.With(t, test.files, 0o600)
			config := test.config
			if config != "" {
				config = root + "/" + config
			}
			d, isCRIO, err := Choose(t.Context(), containerd.Find(root), root, test.runtime, config)
			got := d.Name
			if isCRIO {
				got = NameCRIO
			}
			if err != nil {
				got = "error: " + err.Error()
			}
			if part, isError := strings.CutPrefix(test.want, "error: "); isError != (err != nil) || !strings.Contains(got, part) {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}
