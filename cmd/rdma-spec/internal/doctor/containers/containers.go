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
			return []doctor.Finding{doctor.Unsure("", "The containers are unknown: "+err.Error()+".")}
		}
		if len(answer.Containers)+len(answer.Others)+answer.Failed == 0 {
			return doctor.Inapplicable("No RDMA container runs here.")
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
				return doctor.Inapplicable("No policy says what containers should have: " + answer.Unjudged + ".")
			}
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
		Title:  "No container relies on an IPC_LOCK that its user does not have.",
		Impact: "The runtime gives the capability to root alone, and the memlock is too low.",
		Needs:  []string{"container-refused"}, Look: eachContainer(containerIPCLock),
	}, {
		ID: "container-memlock", Family: "containers", Title: "Each RDMA container can register its memory.",
		Impact: "Registration is refused, and programs fail or fall back to sockets.",
		Needs:  []string{"container-ipc-lock", "container-refused"}, Look: eachContainer(containerMemlock),
	}, {
		ID: "container-unseen", Family: "containers",
		Title:  "No container lacks memlock for HCAs that NVIDIA's container runtime added after NRI.",
		Impact: "The plugin does not see these HCAs, and gives the container no memlock.",
		Look:   eachContainer(containerUnseen),
	}, {
		ID: "container-files", Family: "containers", Title: "Each RDMA container can open more than 1024 files.",
		Impact: "A job of many processes runs out of them: each connection takes some.",
		Needs:  []string{"base-spec-files"}, Look: eachContainer(containerFiles),
	}, {
		ID: "container-refused", Family: "containers", Title: "The policy would create each RDMA container that runs.",
		Impact: "The container is not created again when its pod restarts.",
		Look:   judged(containerRefused),
	}, {
		ID: "container-hca", Family: "containers",
		Title:  "Each RDMA container holds the HCAs that the policy gives it, and is in their network namespace.",
		Impact: "The container has no RDMA.",
		Look:   eachContainer(containerHCA),
	}, {
		ID: "container-port", Family: "containers", Title: "No container depends on an HCA whose ports are all down.",
		Impact: "Programs of the container have no connection.",
		Reads:  doctor.FunctionReads, Needs: []string{"port-active", "guid-valid"}, Look: containerPort,
	}}
}

func containerRefused(v *doctor.View, c node.Container) []doctor.Finding {
	if c.State != node.StateRefused {
		return nil
	}
	answer, _ := v.Containers() // which has the container
	return []doctor.Finding{doctor.Fault(containerObject(c), doctor.Sentence(c.Causes()),
		fmt.Sprintf("Change the pod or the policy (%s) as the message says", answer.Policy))}
}

// recreate is a fault that only a new container does not have.
func recreate(c node.Container, text string) doctor.Finding {
	return doctor.Fault(containerObject(c), text, fmt.Sprintf("kubectl -n %s delete pod %s", c.Namespace, c.Pod)).
		Disruptive("the programs of the pod end, and nothing creates a pod again that no controller owns",
			fmt.Sprintf("kubectl -n %s get pod %s -o yaml", c.Namespace, c.Pod))
}

func containerHCA(v *doctor.View, c node.Container) []doctor.Finding {
	switch {
	case len(c.Stale) > 0:
		return []doctor.Finding{recreate(c, doctor.Sentence(c.Stale)+
			" The HCA was made anew, as after its driver was loaded again, and libraries look for its new number.")}
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
	if has := held(v, c); err == nil && all.NetNSExclusive && c.OwnNetwork && !c.AllDevices && len(has) > 0 {
		return []doctor.Finding{doctor.Fault(containerObject(c), fmt.Sprintf("%s is in the node's network namespace, and "+
			"HCAs are exclusive to theirs (netns_mode): the container cannot open it.", has[0].Name),
			"Add rdma-cni to the NetworkAttachmentDefinition of the pod's interface, so that the HCA moves into the pod, or "+
				"set hostNetwork: true")}
	}
	if len(c.Lacks.Devices) == 0 {
		return nil
	}
	return []doctor.Finding{recreate(c, doctor.Sentence(c.Causes()))}
}

// isRDMA is what makes the SR-IOV device plugin give verbs devices with its functions.
const isRDMA = "isRdma: true in the resource of the SR-IOV network device plugin"

// withoutVerbs is about a container that has functions with HCAs, and no verbs device, as DPDK's driver mlx5 needs it
// too. A pod that uses only the network interfaces lacks nothing.
func withoutVerbs(c node.Container) []doctor.Finding {
	text := fmt.Sprintf("The kubelet gave it %s, and it has no verbs device.", strings.Join(c.Functions, "; "))
	if len(c.Given) > 0 || c.HugePages {
		return []doctor.Finding{doctor.Fault(containerObject(c), text, "Set "+isRDMA+", and create the pod again")}
	}
	return []doctor.Finding{doctor.Unsure(containerObject(c), text+" If it is for RDMA or DPDK, that needs "+isRDMA+".")}
}

// manages finds HCAs that are no program's. What may open all devices of the node is not meant to have them.
func manages(v *doctor.View, c node.Container) (found []doctor.Finding) {
	for _, h := range held(v, c) {
		if h.Purpose() == hca.PurposeManagement && !c.AllDevices {
			object := fmt.Sprintf("%s HCA %s", containerObject(c), h.Name)
			found = append(found, doctor.Fault(object, "It holds an HCA that manages "+
				h.Manages+", by which a program can disturb all GPUs of the node.", "Leave PCI device "+h.PCI+" out of the "+
				"device plugin's selectors, or of the policy's devices, and create the pod again"))
		}
	}
	return found
}

// notGiven is about a container that has a resource of a device plugin, and no HCA. Where the plugin leaves its devices
// to CDI, and CDI is off, nothing else says so.
func notGiven(v *doctor.View, c node.Container) []doctor.Finding {
	text := fmt.Sprintf("The kubelet gave it %s, and it holds no HCA.", strings.Join(c.Given, ", "))
	answer, _ := v.CDI() // cdi-files says so
	for _, f := range answer.Files {
		if r, _ := runtimeOf(v, c); f.RDMA() && r.CDIOff {
			return []doctor.Finding{doctor.Fault(containerObject(c), fmt.Sprintf("%s Its device plugin leaves that to %s, and "+
				"CDI is off in the runtime.", text, f.Path), runtimes.CDIOn(r)+", and create the pod again")}
		}
	}
	return []doctor.Finding{doctor.Unsure(containerObject(c), text+" If it is for RDMA or DPDK, and not for a "+
		"virtual machine: that needs "+isRDMA+"; of another device plugin, the log says why.")}
}

// containerPort names the HCA and not its containers, so that what is wrong with its port explains it.
func containerPort(v *doctor.View) []doctor.Finding {
	holders, why, fix := map[string][]string{}, map[string]string{}, map[string]string{}
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
				fix[object] = cmp.Or(v.LinkOfFunction(h, h.Ports[0]), "Bring the port up, or give the pods another HCA: delete "+
					"them when the device plugin no longer offers this one")
			}
		}
		return nil
	})(v)
	for _, object := range slices.Sorted(maps.Keys(holders)) {
		text := fmt.Sprintf("The port is %s, and containers hold the HCA: %s.", why[object],
			strings.Join(holders[object], ", "))
		found = append(found, doctor.Fault(object, text, fix[object]))
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
