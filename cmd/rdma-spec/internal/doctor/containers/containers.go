// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package containers defines the doctor's checks of running RDMA containers: what the containers have, and what their
// processes can access. It does not know how checks are run.
package containers

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/runtimes"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
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
			return []doctor.Finding{doctor.Unsure("", "The containers cannot be listed: "+err.Error()+".")}
		}
		if len(answer.Containers)+len(answer.Others)+answer.Failed == 0 {
			return doctor.Inapplicable("No RDMA container is running on this node.")
		}
		return doctor.Each(slices.Concat(answer.Containers, answer.Others),
			func(c node.Container) []doctor.Finding { return look(v, c) })
	}
}

// judged looks at the RDMA containers where a policy says what they should have. Where no plugin is installed, nobody
// expects one.
func judged(look func(*doctor.View, node.Container) []doctor.Finding) doctor.Look {
	return func(v *doctor.View) []doctor.Finding {
		answer, err := v.Containers()
		if err == nil && answer.Unjudged != "" && len(answer.Containers)+len(answer.Others) > 0 {
			if plugin, failed := v.Plugin(); failed == nil && !plugin.Installed() && v.Config == "" {
				return doctor.Inapplicable("No policy defines what containers are granted: " + answer.Unjudged + ".")
			}
			return []doctor.Finding{doctor.Unsure("", "The policy is unknown: "+answer.Unjudged+".")}
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
		Title:  "Each container that relies on IPC_LOCK has it.",
		Impact: "Without IPC_LOCK, which the runtime gives only to root, the container cannot register its memory.",
		Needs:  []string{"container-refused"}, Look: eachContainer(containerIPCLock),
	}, {
		ID: "container-memlock", Family: "containers", Title: "Each RDMA container can register its memory.",
		Impact: "The container cannot register memory. Programs fail, or fall back to sockets.",
		Needs:  []string{"container-ipc-lock", "container-refused"}, Look: eachContainer(containerMemlock),
	}, {
		ID: "container-unseen", Family: "containers",
		Title: "Containers can register memory even if NVIDIA's container runtime added HCAs after the NRI plugins ran.",
		Impact: "The plugin cannot see HCAs that are added after it has handled the container. So it does not raise the " +
			"container's memlock, and the container cannot register its memory.",
		Look: eachContainer(containerUnseen),
	}, {
		ID: "container-files", Family: "containers", Title: "Each RDMA container can open more than 1024 files.",
		Impact: "Each connection opens files, so a job with many processes reaches the limit.",
		Needs:  []string{"base-spec-files"}, Look: eachContainer(containerFiles),
	}, {
		ID: "container-refused", Family: "containers", Title: "Running RDMA containers conform to the policy.",
		Impact: "If the container restarts, the plugin refuses it.",
		Look:   judged(containerRefused),
	}, {
		ID: "container-hca", Family: "containers",
		Title:  "Each RDMA container has the HCAs that the policy grants, in its network namespace.",
		Impact: "The container cannot use RDMA.",
		Look:   eachContainer(containerHCA),
	}, {
		ID: "container-port", Family: "containers", Title: "Each HCA of a container has a port that is up.",
		Impact: "Programs in the container cannot connect.",
		Reads:  doctor.FunctionReads, Needs: []string{"port-active", "guid-valid"}, Look: containerPort,
	}}
}

func containerRefused(v *doctor.View, c node.Container) []doctor.Finding {
	if c.State != node.StateRefused {
		return nil
	}
	answer, _ := v.Containers() // which has the container
	return []doctor.Finding{doctor.Fault(containerObject(c), doctor.Sentence(c.Causes()),
		fmt.Sprintf("Change the pod or the policy (%s) as the message describes", answer.Policy))}
}

// recreate is a fault that only a new container does not have.
func recreate(c node.Container, text string) doctor.Finding {
	return doctor.Fault(containerObject(c), text, fmt.Sprintf("kubectl -n %s delete pod %s", c.Namespace, c.Pod)).
		Disruptive("the pod's programs stop, and a pod without a controller is not recreated",
			fmt.Sprintf("kubectl -n %s get pod %s -o yaml", c.Namespace, c.Pod))
}

func containerHCA(v *doctor.View, c node.Container) []doctor.Finding {
	switch {
	case len(c.Stale) > 0:
		return []doctor.Finding{recreate(c, doctor.Sentence(c.Stale)+
			" The HCA was recreated, for example when its driver was reloaded, and libraries look for its new device number.")}
	case len(c.Functions) > 0:
		return withoutVerbs(c)
	case len(c.Given) > 0:
		return notGiven(v, c)
	case !c.RDMA:
		return nil
	}
	if managing := manages(v, c); managing != nil {
		return managing
	}
	all, err := v.HCAs()
	if has := heldHCAs(v, c); err == nil && all.NetNSExclusive && c.OwnNetwork && !c.AllDevices && len(has) > 0 {
		return []doctor.Finding{doctor.Fault(containerObject(c), fmt.Sprintf("The container cannot open %s: the HCA is in "+
			"the node's network namespace, and netns_mode is exclusive.", has[0].Name),
			"Add rdma-cni to the NetworkAttachmentDefinition of the pod's interface, so that the HCA moves into the pod, or "+
				"set hostNetwork: true")}
	}
	if len(c.Lacks.Devices) == 0 {
		return nil
	}
	return []doctor.Finding{recreate(c, doctor.Sentence(c.Causes()))}
}

// isRDMA is what makes the SR-IOV device plugin give verbs devices with its functions.
const isRDMA = "isRdma: true for the resource in the SR-IOV network device plugin's configuration"

// withoutVerbs is about a container that has functions with HCAs, and no verbs device, as DPDK's driver mlx5 needs it
// too. A pod that uses only the network interfaces lacks nothing.
func withoutVerbs(c node.Container) []doctor.Finding {
	text := fmt.Sprintf("The kubelet allocated %s to it, but it has no verbs device.", strings.Join(c.Functions, "; "))
	if len(c.Given) > 0 || c.HugePages {
		return []doctor.Finding{doctor.Fault(containerObject(c), text, "Set "+isRDMA+", and recreate the pod")}
	}
	return []doctor.Finding{doctor.Unsure(containerObject(c), text+" RDMA and DPDK need "+isRDMA+".")}
}

// manages finds HCAs that are no program's. What may open all devices of the node is not meant to have them.
func manages(v *doctor.View, c node.Container) (found []doctor.Finding) {
	for _, h := range heldHCAs(v, c) {
		if h.Purpose() == hca.PurposeManagement && !c.AllDevices {
			object := fmt.Sprintf("%s HCA %s", containerObject(c), h.Name)
			found = append(found, doctor.Fault(object, "The container has an HCA that manages "+
				h.Manages+". A program can use it to disrupt all GPUs on the node.",
				"Exclude PCI device "+h.PCI+
					" from the device plugin's selectors, or from the policy's devices, and recreate the pod"))
		}
	}
	return found
}

// notGiven is about a container that has a resource of a device plugin, and no HCA. Where the plugin leaves its devices
// to CDI, and CDI is off, nothing else says so.
func notGiven(v *doctor.View, c node.Container) []doctor.Finding {
	text := fmt.Sprintf("The kubelet allocated %s to it, but it has no HCA.", strings.Join(c.Given, ", "))
	answer, _ := v.CDI() // cdi-files says so
	for _, f := range answer.Files {
		if r, _ := runtimeOf(v, c); f.RDMA() && r.CDIOff {
			return []doctor.Finding{doctor.Fault(containerObject(c), fmt.Sprintf("%s Its device plugin uses the CDI file %s, "+
				"but CDI is off in the runtime.", text, f.Path), runtimes.CDIOn(r)+", and recreate the pod")}
		}
	}
	return []doctor.Finding{doctor.Unsure(containerObject(c), text+" RDMA needs "+isRDMA+
		", and so does DPDK, except in a virtual machine. If another device plugin allocated the resource, read that "+
		"plugin's log.")}
}

// containerPort names the HCA and not its containers, so that what is wrong with its port explains it.
func containerPort(v *doctor.View) []doctor.Finding {
	holders := map[string][]string{}
	why := map[string]string{}
	fix := map[string]string{}
	found := eachContainer(func(v *doctor.View, c node.Container) []doctor.Finding {
		if c.AllDevices {
			return nil // it holds what the node has
		}
		hcas := heldHCAs(v, c)
		works := slices.ContainsFunc(hcas, hca.HCA.Active)
		for _, h := range hcas {
			if works && h.Function == hca.FunctionPhysical { // a device plugin gives all of the node, cabled or not
				continue
			}
			if len(h.Ports) > 0 && !h.Active() && h.Ports[0].State != "NOP" { // NOP: its driver does not tell
				object := fmt.Sprintf("HCA %s port %d", h.Name, h.Ports[0].Number)
				holders[object] = append(holders[object], c.Namespace+"/"+c.Pod+" "+c.Container)
				why[object] = h.Ports[0].State
				fix[object] = cmp.Or(v.LinkOfFunction(h, h.Ports[0]), "Bring the port up. Or give the pods a different HCA: "+
					"once the device plugin no longer offers this HCA, delete the pods")
			}
		}
		return nil
	})(v)
	for _, object := range slices.Sorted(maps.Keys(holders)) {
		text := fmt.Sprintf("The port is %s, but containers use the HCA: %s.", why[object],
			strings.Join(holders[object], ", "))
		found = append(found, doctor.Fault(object, text, fix[object]))
	}
	return found
}

// heldHCAs returns the HCAs of the node that a container holds. One that cannot be read is left out.
func heldHCAs(v *doctor.View, c node.Container) (hcas []hca.HCA) {
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
