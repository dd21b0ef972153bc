// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cdi"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/record"
	"github.com/rdma-spec/rdma-spec/deploy/systemd"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

const featureCDI = "cdi"

// cdiUnits are the units that update the CDI file, and cdiRule is the udev rule that starts the first unit.
var (
	cdiUnits = []string{"rdma-spec-cdi.service", "rdma-spec-cdi.timer"}
	cdiRule  = "etc/udev/rules.d/90-rdma-spec-cdi.rules"
)

func newConfigureCDICommand(o *Options) *cobra.Command {
	var kubernetes bool
	var installed programs
	cmd := &cobra.Command{
		Use:   "cdi",
		Short: "Keep a CDI file of the HCAs up to date for Podman, Docker, and other runtimes",
		Long: `Keep the CDI file /var/run/cdi/rdma.yaml up to date. The command installs the rdma-spec and
rdma-hook programs in /usr/local/bin. The command also installs units that write the file at boot
and when ports become ACTIVE, and a udev rule that starts the units when HCAs appear or disappear.
To learn what the file contains, see 'rdma-spec cdi generate --help'. With --revert, the command
also removes the CDI files whose hook is one of these programs.

On a node with a kubelet, CDI devices can bypass NRI and the nri-rdma plugin, because
nvidia-container-runtime takes CDI names from NVIDIA_VISIBLE_DEVICES, which a pod can set.
Therefore, the command fails on such a node unless you set --kubernetes.`,
		Example: `  rdma-spec configure cdi
  rdma-spec configure cdi --dry-run
  rdma-spec configure cdi --revert`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&kubernetes, "kubernetes", false,
		"run even on a node with a kubelet, where CDI devices let pods use HCAs that were not allocated to them")
	installed.addFlags(cmd, "programs", "the `DIR` that contains rdma-spec and rdma-hook; by default, the "+
		"directory of the running rdma-spec")
	return o.carriesOut(cmd, featureCDI, func(*cobra.Command, []string) (configured, error) {
		if o.Restart {
			return configured{}, cli.Usage(errors.New("--restart applies only to container runtimes: start the units with " +
				"systemctl enable --now"))
		}
		if found := kubelet(o.Root); found != "" && !kubernetes {
			return configured{}, fmt.Errorf("this node has a kubelet (%s), so pods could use NVIDIA_VISIBLE_DEVICES to get "+
				"HCAs that were not allocated to them: use the nri-rdma plugin instead, or add --kubernetes", found)
		}
		return o.cdi(installed)
	})
}

// Units and files that exist only on a node with a kubelet.
var (
	kubeletUnits = []string{
		"kubelet.service", "k3s.service", "k3s-agent.service", "rke2-server.service", "rke2-agent.service",
		"k0sworker.service", "k0scontroller.service",
	}
	kubeletFiles = []string{"var/lib/kubelet/config.yaml", "var/lib/kubelet/kubeconfig", "var/lib/kubelet/pods",
		"etc/kubernetes/kubelet.conf", "var/snap/microk8s"}
)

// kubelet returns the unit or file that shows that the node below a root has a kubelet; "" if there is none.
func kubelet(root string) string {
	for _, unit := range kubeletUnits {
		if process.HasUnit(root, unit) {
			return "the unit " + unit
		}
	}
	for _, file := range kubeletFiles {
		if _, err := os.Stat(files.Below(root, file)); err == nil {
			return "/" + file
		}
	}
	return ""
}

// cdi plans the hook, and the units that write and update a CDI file for the node's HCAs.
func (o *Options) cdi(p programs) (c configured, err error) {
	c.goals = []record.Goal{{Feature: featureCDI}}
	c.next = []string{"systemctl daemon-reload", "udevadm control --reload",
		"systemctl enable --now " + strings.Join(cdiUnits, " ")}
	dir, err := p.source("")
	if err != nil {
		return c, err
	}
	var all []change.File
	for _, name := range []string{"rdma-hook", "rdma-spec"} {
		file, err := planProgram(o.Root, filepath.Join(dir, name), filepath.Join(p.prefix, "bin", name),
			"put rdma-hook and rdma-spec in the same directory, or set the directory with --programs")
		if err != nil {
			return c, err
		}
		all = append(all, file)
	}
	for _, path := range []string{unitDir + "/" + cdiUnits[0], unitDir + "/" + cdiUnits[1], cdiRule} {
		content, err := systemd.CDI.ReadFile(filepath.Base(path))
		if err != nil {
			return c, err
		}
		all = append(all, p.unitOf(o.Root, path, content))
	}
	c.plan, err = change.Whole(all...)
	return c, err
}

// cdiReversed extends a reversal on the node below a root: the CDI files whose hook is a removed program are removed
// before the program. If the hook did not exist, containers with the files' devices would not start.
func cdiReversed(root string, back *change.Reversal) error {
	after := back.Contents()
	for _, hook := range back.Paths() {
		if after[hook] != nil {
			continue
		}
		named, err := cdi.Naming(root, files.OnNode(root, hook))
		for _, file := range named {
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
