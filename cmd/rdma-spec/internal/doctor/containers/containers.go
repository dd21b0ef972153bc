// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package containers defines the doctor's checks of running RDMA containers. The checks cover the containers' resources
// and limits, and the devices and files that the containers' processes can access. The package does not run the checks.
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

// eachContainer returns the function of a check that calls look for each container.
func eachContainer(look func(*doctor.View, node.Container) []doctor.Finding) doctor.Look {
	return func(v *doctor.View) []doctor.Finding {
		answer, err := v.Containers()
		if err != nil {
			if runtimes, failed := v.Runtimes(); failed == nil && len(runtimes.ForPods()) == 0 {
				return doctor.Inapplicable("No container runtime for pods was found.")
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

// judged returns the function of a check that needs a policy and calls look for each RDMA container. If there is no
// policy and no plugin is installed, the check does not apply.
func judged(look func(*doctor.View, node.Container) []doctor.Finding) doctor.Look {
	return func(v *doctor.View) []doctor.Finding {
		answer, err := v.Containers()
		if err == nil && answer.Unjudged != "" && len(answer.Containers)+len(answer.Others) > 0 {
			if plugin, failed := v.Plugin(); failed == nil && !plugin.Installed() && v.Config == "" {
				return doctor.Inapplicable("No policy defines the containers' grants: " + answer.Unjudged + ".")
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

// containerChecks returns the checks of the containers' devices and limits.
func containerChecks() []doctor.Check {
	return []doctor.Check{{
		ID: "container-ipc-lock", Family: "containers",
		Title: "In each container that relies on IPC_LOCK, the first process has this capability.",
		Impact: "The container cannot register its memory without IPC_LOCK. The runtime gives this capability only to " +
			"processes that run as root.",
		Needs: []string{"container-refused"}, Look: eachContainer(containerIPCLock),
	}, {
		ID: "container-memlock", Family: "containers", Title: "Each RDMA container can register its memory.",
		Impact: "The container cannot register memory. Programs in the container fail or fall back to sockets.",
		Needs:  []string{"container-ipc-lock", "container-refused"}, Look: eachContainer(containerMemlock),
	}, {
		ID: "container-unseen", Family: "containers",
		Title: "Containers can register memory even if NVIDIA's container runtime added HCAs after the NRI plugins ran.",
		Impact: "These HCAs are added after the plugin has run, so the plugin does not raise the container's memlock. " +
			"The container cannot register its memory.",
		Look: eachContainer(containerUnseen),
	}, {
		ID: "container-files", Family: "containers", Title: "Each RDMA container can open more than 1024 files.",
		Impact: "Each connection opens files. A job with many processes reaches the limit on open files.",
		Needs:  []string{"base-spec-files"}, Look: eachContainer(containerFiles),
	}, {
		ID: "container-refused", Family: "containers", Title: "Running RDMA containers conform to the policy.",
		Impact: "If the container restarts, the plugin refuses the new container.",
		Look:   judged(containerRefused),
	}, {
		ID: "container-hca", Family: "containers",
		Title:  "The network namespace of each RDMA container contains the HCAs that the policy grants.",
		Impact: "The container cannot use RDMA.",
		Look:   eachContainer(containerHCA),
	}, {
		ID: "container-port", Family: "containers", Title: "Each of a container's HCAs has a port that is up.",
		Impact: "Programs in the container cannot connect.",
		Reads:  doctor.FunctionReads, Needs: []string{"port-active", "guid-valid"}, Look: containerPort,
	}}
}

func containerRefused(v *doctor.View, c node.Container) []doctor.Finding {
	if c.State != node.StateRefused {
		return nil
	}
	answer, _ := v.Containers() // without an error, because the container comes from this answer
	return []doctor.Finding{doctor.Fault(containerObject(c), doctor.Sentence(c.Problems),
		fmt.Sprintf("Change the pod or the policy (%s) as the message describes", answer.Policy))}
}

// recreate returns a fault whose fix is to recreate the pod.
func recreate(c node.Container, text string) doctor.Finding {
	return doctor.Fault(containerObject(c), text, fmt.Sprintf("kubectl -n %s delete pod %s", c.Namespace, c.Pod)).
		Disruptive("The pod's programs stop. A pod without a controller is not recreated.",
			fmt.Sprintf("kubectl -n %s get pod %s -o yaml", c.Namespace, c.Pod))
}

func containerHCA(v *doctor.View, c node.Container) []doctor.Finding {
	switch {
	case len(c.Stale) > 0:
		return []doctor.Finding{recreate(c, doctor.Sentence(c.Stale)+
			" The HCA was recreated, for example because its driver was reloaded. Libraries look for a device with the "+
			"HCA's new number.")}
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
		return []doctor.Finding{doctor.Fault(containerObject(c), fmt.Sprintf("The container cannot open HCA %s, "+
			"because netns_mode is exclusive and the HCA is in the node's network namespace.", has[0].Name),
			"To move the HCA into the pod, add rdma-cni to the NetworkAttachmentDefinition of the pod's interface. Or set "+
				"hostNetwork: true in the pod")}
	}
	if len(c.Lacks.Devices) == 0 {
		return nil
	}
	return []doctor.Finding{recreate(c, doctor.Sentence(c.Problems))}
}

// isRDMA is the setting with which the SR-IOV device plugin injects verbs devices with its functions.
const isRDMA = "isRdma: true for the resource in the configuration of the SR-IOV network device plugin"

// withoutVerbs reports a container that has functions with HCAs, but no verbs device. DPDK's mlx5 driver also needs the
// verbs device. A pod that uses only the network interfaces lacks nothing.
func withoutVerbs(c node.Container) []doctor.Finding {
	text := fmt.Sprintf("The kubelet allocated %s to the container, but the container has no verbs device.",
		strings.Join(c.Functions, "; "))
	if len(c.Given) > 0 || c.HugePages {
		return []doctor.Finding{doctor.Fault(containerObject(c), text, "Set "+isRDMA+", and recreate the pod")}
	}
	return []doctor.Finding{doctor.Unsure(containerObject(c), text+" RDMA and DPDK need "+isRDMA+".")}
}

// manages reports the container's HCAs that are only for management. Containers that can open all of the node's devices
// are left out.
func manages(v *doctor.View, c node.Container) (found []doctor.Finding) {
	for _, h := range heldHCAs(v, c) {
		if h.Purpose() == hca.PurposeManagement && !c.AllDevices {
			object := fmt.Sprintf("%s HCA %s", containerObject(c), h.Name)
			found = append(found, doctor.Fault(object, "The container has an HCA that manages "+
				h.Manages+". A program can use this HCA to disrupt all GPUs on the node.",
				"Exclude PCI device "+h.PCI+
					" from the device plugin's selectors or from the policy's devices, and recreate the pod"))
		}
	}
	return found
}

// notGiven reports a container to which the kubelet allocated a device plugin's resource, but that has no HCA. If the
// device plugin leaves its devices to CDI, and CDI is off, no other message names the cause.
func notGiven(v *doctor.View, c node.Container) []doctor.Finding {
	text := fmt.Sprintf("The kubelet allocated %s to the container, but the container has no HCA.",
		strings.Join(c.Given, ", "))
	answer, _ := v.CDI() // cdi-files reports the error
	for _, f := range answer.Files {
		if r, _ := runtimeOf(v, c); f.RDMA() && r.CDIOff {
			return []doctor.Finding{doctor.Fault(containerObject(c), fmt.Sprintf("%s The device plugin uses the CDI file %s, "+
				"but CDI is disabled in the container runtime.", text, f.Path), runtimes.CDIOn(r)+". Then recreate the pod")}
		}
	}
	return []doctor.Finding{doctor.Unsure(containerObject(c), text+" RDMA needs "+isRDMA+
		". Outside virtual machines, DPDK also needs this setting. If another device plugin provides the resource, "+
		"read that plugin's log.")}
}

// containerPort reports HCAs instead of containers, so that a fault of the HCA's port explains the finding.
func containerPort(v *doctor.View) []doctor.Finding {
	holders := map[string][]string{}
	why := map[string]string{}
	fix := map[string]string{}
	found := eachContainer(func(v *doctor.View, c node.Container) []doctor.Finding {
		if c.AllDevices {
			return nil // it has all of the node's HCAs
		}
		hcas := heldHCAs(v, c)
		works := slices.ContainsFunc(hcas, hca.HCA.Active)
		for _, h := range hcas {
			if works && h.Function == hca.FunctionPhysical { // a device plugin injects all HCAs of the node, even without cable
				continue
			}
			if len(h.Ports) > 0 && !h.Active() && h.Ports[0].State != "NOP" { // NOP: its driver does not report one
				object := fmt.Sprintf("HCA %s port %d", h.Name, h.Ports[0].Number)
				holders[object] = append(holders[object], c.Namespace+"/"+c.Pod+" "+c.Container)
				why[object] = h.Ports[0].State
				fix[object] = cmp.Or(v.LinkOfFunction(h, h.Ports[0]), "Bring the port up. Or, to give the pods a different "+
					"HCA, remove this HCA from the device plugin's selector, and then delete the pods")
			}
		}
		return nil
	})(v)
	for _, object := range slices.Sorted(maps.Keys(holders)) {
		text := fmt.Sprintf("The port is %s, but these containers use the HCA: %s.", why[object],
			strings.Join(holders[object], ", "))
		found = append(found, doctor.Fault(object, text, fix[object]))
	}
	return found
}

// heldHCAs returns the node's HCAs that a container has, except HCAs that cannot be read.
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
