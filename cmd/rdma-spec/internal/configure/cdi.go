// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cdi"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/oserror"
	"github.com/rdma-spec/rdma-spec/deploy/systemd"
)

// cdiPrograms are what the CDI file and its units need, and where.
var cdiPrograms = map[string]string{"rdma-spec": "usr/local/bin/rdma-spec", "rdma-hook": "usr/local/bin/rdma-hook"}

// kubelets are what only a node with a kubelet has: units, and files.
var (
	kubeletUnits = []string{
		"kubelet.service", "k3s.service", "k3s-agent.service", "rke2-server.service", "rke2-agent.service",
		"k0sworker.service", "k0scontroller.service",
	}
	kubeletFiles = []string{"var/lib/kubelet/config.yaml", "var/lib/kubelet/kubeconfig", "var/lib/kubelet/pods",
		"etc/kubernetes/kubelet.conf", "var/snap/microk8s"}
)

// Kubelet returns what shows that the node below a root has a kubelet; "" if nothing does.
func Kubelet(root string) string {
	for _, unit := range kubeletUnits {
		if process.HasUnit(root, unit) {
			return "the unit " + unit
		}
	}
	for _, file := range kubeletFiles {
		if _, err := os.Stat(filepath.Join(root, file)); err == nil {
			return "/" + file
		}
	}
	return ""
}

// CDI plans that the node below a root has a CDI file of its HCAs that stays right: the hook, and the units that write
// the file. folder has the programs.
func CDI(root, folder string) (change.Plan, error) {
	var plan []change.File
	for _, name := range []string{"rdma-hook", "rdma-spec"} {
		from := filepath.Join(folder, name)
		content, err := os.ReadFile(from)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s does not exist: put rdma-hook and rdma-spec into one folder, or name it with --programs",
				from)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", from, oserror.Reason(err))
		}
		plan = append(plan, change.File{Path: filepath.Join(root, cdiPrograms[name]), Content: content, Mode: 0o755})
	}
	for _, unit := range CDIUnits {
		content, err := systemd.CDI.ReadFile(unit)
		if err != nil {
			return nil, err
		}
		plan = append(plan, change.File{Path: filepath.Join(root, "etc/systemd/system", unit), Content: content})
	}
	return change.Whole(plan...)
}

// CDIUnits are the units that keep the CDI file right.
var CDIUnits = []string{"rdma-spec-cdi.service", "rdma-spec-cdi.path", "rdma-spec-cdi.timer"}

// CDINext says how to start the units.
func CDINext() []string {
	return []string{"systemctl daemon-reload", "systemctl enable --now " + strings.Join(CDIUnits, " ")}
}

// CDIReversed adds to a reversal on the node below a root that the CDI files that name a program as their hook are
// removed before it is: with a hook that does not exist, no container with their devices starts.
func CDIReversed(root string, back *change.Reversal) error {
	for _, program := range cdiPrograms {
		hook := filepath.Join(root, program)
		if !back.Removes(hook) {
			continue
		}
		files, err := cdi.Naming(root, "/"+program)
		for _, file := range files {
			if err == nil {
				err = back.RemoveBefore(hook, file)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}
