// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package containers has the checks of running RDMA containers: what they have, and what their processes can see.
package containers

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

func containerObject(c node.Container) string {
	return fmt.Sprintf("container %s/%s %s", c.Namespace, c.Pod, c.Container)
}

// eachContainer looks at the RDMA containers one by one.
func eachContainer(look func(*doctor.View, node.Container) []doctor.Finding) doctor.Look {
	return func(v *doctor.View) []doctor.Finding {
		answer, err := v.Containers()
		if err != nil {
			if runtimes, failed := v.Runtimes(); failed == nil && len(runtimes.ForPods()) == 0 {
				return doctor.Inapplicable("No container runtime that serves pods was found.")
			}
			return []doctor.Finding{doctor.Unsure("", "The containers are unknown: "+err.Error()+".")}
		}
		if len(answer.Containers)+len(answer.Mounted)+answer.Failed == 0 {
			return doctor.Inapplicable("No RDMA container runs here.")
		}
		return doctor.Each(slices.Concat(answer.Containers, answer.Mounted),
			func(c node.Container) []doctor.Finding { return look(v, c) })
	}
}

// judged looks at the RDMA containers where a policy says what they should have.
func judged(look func(*doctor.View, node.Container) []doctor.Finding) doctor.Look {
	return func(v *doctor.View) []doctor.Finding {
		answer, err := v.Containers()
		if err == nil && answer.Unjudged != "" && len(answer.Containers)+len(answer.Mounted) > 0 {
			return []doctor.Finding{doctor.Unsure("", "What containers should have is unknown: "+answer.Unjudged+".")}
		}
		return eachContainer(func(v *doctor.View, c node.Container) []doctor.Finding {
			if !c.RDMA {
				return nil
			}
			return look(v, c)
		})(v)
	}
}

// containerChecks are the checks of what containers have.
func containerChecks() []doctor.Check {
	return []doctor.Check{{
		ID: "container-ipc-lock", Family: "containers",
		Title:    "No container relies on an IPC_LOCK that its user does not have.",
		Messages: []string{"Couldn't allocate MR"},
		Why:      "The runtime gives the capability to root alone, and the memlock is too low.",
		Look:     judged(containerIPCLock),
	}, {
		ID: "container-memlock", Family: "containers",
		Title: "Each RDMA container has the memlock that the policy gives it.",
		Messages: []string{"Couldn't allocate MR", "Couldn't register MR", "Libfabric error: (-12) Cannot allocate memory",
			"ibv_reg_mr_iova2 failed with error Cannot allocate memory",
			"Call to ibv_reg_mr failed with error Cannot allocate memory",
			"Please set max locked memory (ulimit -l) to 'unlimited'",
			"The OpenFabrics (openib) BTL failed to initialize while trying to allocate some locked memory"},
		Why:   "The container cannot register its memory.",
		Needs: []string{"container-ipc-lock"}, Look: judged(containerMemlock),
	}, {
		ID: "container-unseen", Family: "containers",
		Title:    "No container lacks memlock for HCAs that NVIDIA's container runtime added after NRI.",
		Messages: []string{"Couldn't allocate MR"},
		Why:      "The plugin does not see these HCAs, and gives the container no memlock.",
		Look:     eachContainer(containerUnseen),
	}, {
		ID: "container-refused", Family: "containers", Title: "The policy would create each RDMA container that runs.",
		Messages: []string{"may not opt in by annotation"},
		Why:      "The container is not created again when its pod restarts.",
		Look:     judged(containerRefused),
	}, {
		ID: "container-hca", Family: "containers",
		Title:    "Each RDMA container holds the HCAs that the policy gives it, and is in their network namespace.",
		Messages: []string{"No IB devices found"},
		Why:      "The container has no RDMA.",
		Look:     judged(containerHCA),
	}, {
		ID: "container-port", Family: "containers", Title: "No container depends on an HCA whose ports are all down.",
		Messages: []string{"Port number 1 state is Down"},
		Why:      "Programs of the container have no connection.",
		Needs:    []string{"port-active"}, Look: containerPort,
	}}
}

// containerIPCLock looks at containers that have the capability, and whose first process does not.
func containerIPCLock(_ *doctor.View, c node.Container) []doctor.Finding {
	if !slices.Contains(c.Bounding, spec.CapIPCLock) || c.IPCLock == nil || *c.IPCLock || c.User <= 0 || c.UserNamespace ||
		c.Memlock == nil || enough(c) {
		return nil
	}
	text := fmt.Sprintf("It has CAP_IPC_LOCK, and its process, which runs as user %d, does not; its memlock is %s.",
		c.User, c.Memlock.Soft)
	cure := cmp.Or(c.Remedy.Text, "Set a memlock for it in the policy, or let its program run as root")
	return []doctor.Finding{remedied(c, text, cure)}
}

// enough reports whether a container has the memlock that the policy gives it or, where that gives none, more than a
// kernel.
func enough(c node.Container) bool {
	switch {
	case c.Memlock == nil:
		return false
	case c.Wanted == nil || c.Wanted.Memlock == 0:
		return !runtime.Low(&c.Memlock.Soft)
	}
	return c.Memlock.Soft >= c.Wanted.Memlock
}

func containerMemlock(_ *doctor.View, c node.Container) []doctor.Finding {
	switch {
	case c.State == node.StateUnknown:
		return []doctor.Finding{doctor.Unsure(containerObject(c), doctor.Sentence(c.Causes()))}
	case c.Remedy.Action == node.Nothing:
		return nil
	}
	return []doctor.Finding{remedied(c, doctor.Sentence(c.Causes()), c.Remedy.Text)}
}

// remedied is a fault of a container's memlock. A repair takes nothing from the container.
func remedied(c node.Container, text, cure string) doctor.Finding {
	f := doctor.Fault(containerObject(c), text, cure)
	if c.Remedy.Action == node.Repair {
		f = f.Paste()
	}
	return f
}

func containerUnseen(_ *doctor.View, c node.Container) []doctor.Finding {
	if c.State != node.StateUnseen || c.Memlock == nil || enough(c) {
		return nil
	}
	return []doctor.Finding{doctor.Fault(containerObject(c), fmt.Sprintf("Its memlock is %s. %s", c.Memlock.Soft,
		doctor.Sentence(c.Causes())), "Decide whether an image may choose this, since it can set the variable; if so, "+
		c.Remedy.Text)}
}

func containerRefused(v *doctor.View, c node.Container) []doctor.Finding {
	if c.State != node.StateRefused {
		return nil
	}
	answer, _ := v.Containers() // which has the container
	return []doctor.Finding{doctor.Fault(containerObject(c), doctor.Sentence(c.Causes()),
		fmt.Sprintf("Change the pod or the policy (%s) as the message says", answer.Policy))}
}

func containerHCA(v *doctor.View, c node.Container) []doctor.Finding {
	all, err := v.HCAs()
	if has := held(v, c); err == nil && all.NetNSExclusive && c.OwnNetwork && !c.AllDevices && len(has) > 0 {
		return []doctor.Finding{doctor.Fault(containerObject(c), fmt.Sprintf("%s is in the node's network namespace, and "+
			"HCAs are exclusive to theirs (netns_mode): the container cannot open it.", has[0].Name),
			"Add rdma-cni to the NetworkAttachmentDefinition of the pod's interface, so that the HCA moves into the pod, or "+
				"set hostNetwork: true")}
	}
	if !c.LacksHCA() {
		return nil
	}
	return []doctor.Finding{doctor.Fault(containerObject(c), doctor.Sentence(c.Causes()),
		fmt.Sprintf("kubectl -n %s delete pod %s", c.Namespace, c.Pod)).WithCare("the programs of the pod end, and nothing "+
		"creates a pod again that no controller owns", fmt.Sprintf("kubectl -n %s get pod %s -o yaml", c.Namespace, c.Pod))}
}

// containerPort names the HCA and not its containers, so that what is wrong with its port explains it.
func containerPort(v *doctor.View) []doctor.Finding {
	holders, why := map[string][]string{}, map[string]string{}
	found := eachContainer(func(v *doctor.View, c node.Container) []doctor.Finding {
		if c.AllDevices {
			return nil // it holds what the node has
		}
		hcas := held(v, c)
		works := slices.ContainsFunc(hcas, hca.HCA.Active)
		for _, h := range hcas {
			if works && h.Function == hca.FunctionPhysical { // a device plugin gives all of the node, cabled or not
				continue
			}
			if len(h.Ports) > 0 && !h.Active() && h.Ports[0].State != "NOP" { // NOP: its driver does not tell
				object := fmt.Sprintf("HCA %s port %d", h.Name, h.Ports[0].Number)
				holders[object], why[object] = append(holders[object], c.Namespace+"/"+c.Pod+" "+c.Container), h.Ports[0].State
			}
		}
		return nil
	})(v)
	for _, object := range slices.Sorted(maps.Keys(holders)) {
		text := fmt.Sprintf("The port is %s, and containers hold the HCA: %s.", why[object],
			strings.Join(holders[object], ", "))
		found = append(found, doctor.Fault(object, text,
			"Bring the port up, or give the pods another HCA: delete them when the device plugin no longer offers this one"))
	}
	return found
}

// held returns the HCAs of the node that a container holds. One that cannot be read is left out.
func held(v *doctor.View, c node.Container) (hcas []hca.HCA) {
	node, err := v.HCAs()
	if err != nil {
		return nil
	}
	for _, h := range node.HCAs {
		if h.Unread == "" && slices.Contains(c.HCAs, h.Name) {
			hcas = append(hcas, h)
		}
	}
	return hcas
}

// Checks returns the family's checks.
func Checks() []doctor.Check {
	return slices.Concat(containerChecks(), insideChecks(), networkChecks())
}
