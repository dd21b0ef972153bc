// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/cli"
)

const featureCDI = "cdi"

func newConfigureCDICommand(o *Options) *cobra.Command {
	var kubernetes bool
	var programs string
	cmd := &cobra.Command{
		Use:   "cdi",
		Short: "Keep a CDI file of the node's HCAs for Podman, Docker and others",
		Long: `Install what keeps the CDI file /etc/cdi/rdma.yaml right: the programs rdma-spec and rdma-hook in
/usr/local/bin, and units that write the file at boot, when HCAs come or go, and when ports become
ACTIVE. See 'rdma-spec cdi generate --help' for what is in the file. --revert also removes the CDI
files that name one of these programs as their hook.

On a node with a kubelet, CDI devices can get into pods past NRI and past the plugin nri-rdma:
nvidia-container-runtime takes CDI names from a pod's own variable NVIDIA_VISIBLE_DEVICES. So this
refuses such a node, unless you set --kubernetes.`,
		Example: `  rdma-spec configure cdi
  rdma-spec configure cdi --dry-run
  rdma-spec configure cdi --revert`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Revert {
				return o.revertFeatures(cmd, featureCDI)
			}
			return o.carryOut(cmd, func() (configured, error) { return o.cdi(programs, kubernetes) })
		},
	}
	cmd.Flags().BoolVar(&kubernetes, "kubernetes", false,
		"on a node with a kubelet, too: a pod may get HCAs that nobody has allotted to it")
	cmd.Flags().StringVar(&programs, "programs", "",
		"the `DIR` of rdma-spec and rdma-hook; by default that of this rdma-spec")
	return cmd
}

func (o *Options) cdi(programs string, kubernetes bool) (c configured, err error) {
	if o.Restart {
		return c, cli.Usage(errors.New("--restart is for a container runtime: start the units with systemctl enable --now"))
	}
	if kubelet := Kubelet(o.Root); kubelet != "" && !kubernetes {
		return c, fmt.Errorf("this node has a kubelet (%s): nvidia-container-runtime takes CDI names from a pod's own "+
			"NVIDIA_VISIBLE_DEVICES, "+
			"so rdma.noderesource.dev/hca=all in it would give a pod every HCA, after NRI: use the plugin nri-rdma instead, "+
			"or add --kubernetes", kubelet)
	}
	if programs == "" {
		self, err := os.Executable()
		if err != nil {
			return c, err
		}
		programs = filepath.Dir(self)
	}
	c.feature, c.next = featureCDI, CDINext()
	c.plan, err = CDI(o.Root, programs)
	return c, err
}
