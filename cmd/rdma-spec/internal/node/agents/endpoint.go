// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

// Endpoint returns the runtime socket that a node's kubelet uses, or "" if the socket is unknown. The sources are the
// command line of the running kubelet or of its unit, the flags that kubeadm adds, and the kubelet's configuration.
func Endpoint(t process.Table) string {
	root := t.Root
	kubelet := process.Starts(root, "kubelet.service")
	for _, p := range t.Called(kubelets...) {
		if p.OnNode || inContainer(root, p) {
			kubelet = p
			break
		}
	}
	endpoint := kubelet.Flag("--container-runtime-endpoint")
	if endpoint == "" {
		text, _ := os.ReadFile(files.Below(root, "/var/lib/kubelet/kubeadm-flags.env")) // the file is optional
		between := func(r rune) bool { return strings.ContainsRune(" \n\"'", r) }
		added := process.Process{Args: strings.FieldsFunc(string(text), between)}
		endpoint = added.Flag("--container-runtime-endpoint")
	}
	if endpoint == "" {
		configs := []string{files.Below(root, cmp.Or(kubelet.Flag("--config"), "/var/lib/kubelet/config.yaml"))}
		if dir := kubelet.Flag("--config-dir"); dir != "" {
			dropIns, _ := filepath.Glob(filepath.Join(files.Below(root, dir), "*.conf")) // fails only for a bad pattern
			configs = append(configs, dropIns...)
		}
		for _, file := range slices.Backward(configs) {
			var says struct{ ContainerRuntimeEndpoint string }
			text, _ := os.ReadFile(file) // the file is optional
			if yaml.Unmarshal(text, &says) == nil && endpoint == "" {
				endpoint = says.ContainerRuntimeEndpoint
			}
		}
	}
	return strings.TrimPrefix(endpoint, "unix://")
}
