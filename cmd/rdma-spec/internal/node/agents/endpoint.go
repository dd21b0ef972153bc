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

// Endpoint returns the socket of the runtime that the kubelet of a node uses, where it says so: on the
// command line of the process that runs or else of its unit, in what kubeadm has it add there, or in its configuration.
// "" is unknown.
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
		text, _ := os.ReadFile(files.Below(root, "/var/lib/kubelet/kubeadm-flags.env")) // it needs not be there
		between := func(r rune) bool { return strings.ContainsRune(" \n\"'", r) }
		added := process.Process{Args: strings.FieldsFunc(string(text), between)}
		endpoint = added.Flag("--container-runtime-endpoint")
	}
	if endpoint == "" {
		configs := []string{files.Below(root, cmp.Or(kubelet.Flag("--config"), "/var/lib/kubelet/config.yaml"))}
		if dir := kubelet.Flag("--config-dir"); dir != "" {
			dropIns, _ := filepath.Glob(filepath.Join(files.Below(root, dir), "*.conf")) // a bad pattern is the only error
			configs = append(configs, dropIns...)
		}
		for _, file := range slices.Backward(configs) {
			var says struct{ ContainerRuntimeEndpoint string }
			text, _ := os.ReadFile(file) // it needs not be there
			if yaml.Unmarshal(text, &says) == nil && endpoint == "" {
				endpoint = says.ContainerRuntimeEndpoint
			}
		}
	}
	return strings.TrimPrefix(endpoint, "unix://")
}
