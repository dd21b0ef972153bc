// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/agents"
	"github.com/rdma-spec/rdma-spec/plugin/policy/resource"
)

// kubeletRoot is the kubelet's usual directory, where plugins look for its sockets.
const kubeletRoot = "/var/lib/kubelet"

// restartKubelet is a fault that a restart of the kubelet fixes, which can be a part of a platform's service, or be in
// a container.
func restartKubelet(k agents.Kubelet, text string) []doctor.Finding {
	if k.Unit == "" {
		return []doctor.Finding{doctor.Fault("kubelet", text,
			"Restart the kubelet. No systemd unit manages the kubelet. On Talos: talosctl service kubelet restart")}
	}
	unit := strings.TrimSuffix(k.Unit, ".service")
	return []doctor.Finding{doctor.Fault("kubelet", text, "systemctl restart "+unit).Command()}
}

// withKubelet looks at the kubelet where one runs.
func withKubelet(look func(v *doctor.View, k agents.Kubelet) []doctor.Finding) doctor.Look {
	return func(v *doctor.View) []doctor.Finding {
		k, err := v.Kubelet()
		if err != nil {
			return []doctor.Finding{doctor.Unsure("", "The kubelet's state is unknown: "+err.Error()+".")}
		}
		if k.PID == 0 {
			return doctor.Inapplicable("No kubelet is running on this node.")
		}
		return look(v, k)
	}
}

// KubeletChecks are the checks of the kubelet, and of the device plugins that register with it.
func KubeletChecks() []doctor.Check {
	return []doctor.Check{{
		ID: "kubelet-root", Family: "kubelet", Title: "The kubelet's directory is where plugins expect it to be.",
		Impact: "Device plugins and nri-rdma do not find the kubelet's sockets in /var/lib/kubelet.",
		Reads:  []string{"var/lib/kubelet/device-plugins/kubelet.sock"}, Look: withKubelet(kubeletAtRoot),
	}, {
		ID: "kubelet-device-plugins", Family: "kubelet", Title: "The kubelet's socket for device plugins exists.",
		Impact: "No device plugin can register, and pods that request RDMA resources stay pending.",
		Look:   withKubelet(kubeletDevicePlugins),
	}, {
		ID: "kubelet-pod-resources", Family: "kubelet", Title: "The kubelet's pod resources API answers.",
		Impact: "If a rule that lists resources might match an RDMA container, the plugin refuses the container.",
		Look:   withKubelet(kubeletPodResources),
	}, {
		ID: "kubelet-allocatable", Family: "kubelet", Title: "Each RDMA resource on the node has devices.",
		Impact: "The device plugin is not registered, and pods that request the resource stay pending.",
		Needs:  []string{"kubelet-device-plugins", "kubelet-pod-resources"}, Look: withKubelet(kubeletAllocatable),
	}}
}

// kubeletAtRoot has nothing to say where there is no HCA: k0s' kubelet is elsewhere on all its nodes.
func kubeletAtRoot(v *doctor.View, k agents.Kubelet) []doctor.Finding {
	if k.Root == "" || path.Clean(k.Root) == kubeletRoot {
		return nil
	}
	if hcas, err := v.HCAs(); err == nil && len(hcas.HCAs) == 0 {
		return doctor.Inapplicable("The node has no HCA.")
	}
	if there, err := v.Exists("var/lib/kubelet/device-plugins/kubelet.sock"); there || err != nil {
		return nil // a link or a mount leads there
	}
	if k.NotMounted {
		return missingSocket(k, "device-plugins")
	}
	text := fmt.Sprintf("The kubelet's --root-dir is %s, but %s does not point there.", k.Root, kubeletRoot)
	fix := fmt.Sprintf("In the chart values of nri-rdma and of the device plugins, set the kubelet's directory to "+
		"%[1]s. Or, once nothing uses %[2]s, mount the kubelet's directory there (mount --bind %[1]s %[2]s), and "+
		"add the mount to /etc/fstab", k.Root, kubeletRoot)
	return []doctor.Finding{doctor.Fault("kubelet", text, fix)}
}

// missingSocket is the finding where the kubelet has no socket in one of its directories.
func missingSocket(k agents.Kubelet, dir string) []doctor.Finding {
	if k.NotMounted { // the directory is not mounted into the container that the doctor runs in
		return []doctor.Finding{doctor.Unsure("kubelet", fmt.Sprintf("%s/%s %s.", k.Root, dir, node.NotFromHere))}
	}
	return restartKubelet(k, fmt.Sprintf("The socket %s/%s/kubelet.sock does not exist.", k.Root, dir))
}

func kubeletDevicePlugins(_ *doctor.View, k agents.Kubelet) []doctor.Finding {
	if k.DevicePlugins {
		return nil
	}
	return missingSocket(k, "device-plugins")
}

func kubeletPodResources(_ *doctor.View, k agents.Kubelet) []doctor.Finding {
	switch {
	case !k.PodResources:
		return missingSocket(k, "pod-resources")
	case k.Late:
		return []doctor.Finding{doctor.Unsure("kubelet", "Its pod resources API did not answer in time.")}
	case k.Error != "":
		return restartKubelet(k, "The kubelet's pod resources API does not answer: "+k.Error+".")
	}
	return nil
}

// kubeletAllocatable names each resource after the kubelet, so that what is wrong with the kubelet explains it.
func kubeletAllocatable(v *doctor.View, k agents.Kubelet) (found []doctor.Finding) {
	hcas, err := v.HCAs()
	inPods := err == nil && hcas.NetNSExclusive && len(hcas.Elsewhere) > 0
	for _, name := range slices.Sorted(maps.Keys(k.Allocatable)) {
		if resource.IsRDMA(name) && k.Allocatable[name] == 0 {
			text := fmt.Sprintf("The node previously had devices for %s, but now has none.", name)
			fix := "Delete the pod of the device plugin that serves " + name + " on this node. Its DaemonSet recreates it"
			if inPods { // see k8snetworkplumbingwg/sriov-network-device-plugin#603
				text += " HCAs are in pods' network namespaces. Older SR-IOV device plugins do not find HCAs there when they start."
				fix = "First upgrade the SR-IOV device plugin, or delete the pods that use HCAs (see: rdma-spec status). " + fix
			}
			found = append(found, doctor.Fault("kubelet resource "+name, text, fix))
		}
	}
	return found
}
