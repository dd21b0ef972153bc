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

// kubeletRoot is the kubelet's usual directory, in which plugins look for the kubelet's sockets.
const kubeletRoot = "/var/lib/kubelet"

// restartKubelet returns a fault that a restart of the kubelet fixes. The kubelet can be a part of a platform's
// service, or run in a container.
func restartKubelet(k agents.Kubelet, text string) []doctor.Finding {
	if k.Unit == "" {
		return []doctor.Finding{doctor.Fault("kubelet", text,
			"No systemd unit manages the kubelet, so restart it without systemctl. On Talos, run: "+
				"talosctl service kubelet restart")}
	}
	unit := strings.TrimSuffix(k.Unit, ".service")
	return []doctor.Finding{doctor.Fault("kubelet", text, "systemctl restart "+unit).Command()}
}

// withKubelet runs a check of the kubelet if a kubelet is running.
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
		Impact: "Device plugins and nri-rdma cannot find the kubelet's sockets in /var/lib/kubelet.",
		Reads:  []string{"var/lib/kubelet/device-plugins/kubelet.sock"}, Look: withKubelet(kubeletAtRoot),
	}, {
		ID: "kubelet-device-plugins", Family: "kubelet", Title: "The kubelet's socket for device plugins exists.",
		Impact: "Device plugins cannot register. Pods that request RDMA resources stay Pending.",
		Look:   withKubelet(kubeletDevicePlugins),
	}, {
		ID: "kubelet-pod-resources", Family: "kubelet", Title: "The kubelet's pod resources API responds.",
		Impact: "The plugin refuses an RDMA container if a policy rule that lists resources might match the " +
			"container.",
		Look: withKubelet(kubeletPodResources),
	}, {
		ID: "kubelet-allocatable", Family: "kubelet", Title: "Each RDMA resource on the node has devices.",
		Impact: "Because the device plugin is not registered, pods that request the resource stay Pending.",
		Needs:  []string{"kubelet-device-plugins", "kubelet-pod-resources"}, Look: withKubelet(kubeletAllocatable),
	}}
}

// kubeletAtRoot does not apply to nodes without an HCA, because k0s uses another kubelet directory on all its nodes.
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
	text := fmt.Sprintf("The kubelet's --root-dir is %s, but %s does not point to this directory.", k.Root, kubeletRoot)
	fix := fmt.Sprintf("In the chart values of nri-rdma and of the device plugins, set the kubelet's directory to "+
		"%[1]s. Alternatively, when no program uses %[2]s, run 'mount --bind %[1]s %[2]s', and add the mount to "+
		"/etc/fstab", k.Root, kubeletRoot)
	return []doctor.Finding{doctor.Fault("kubelet", text, fix)}
}

// missingSocket returns the finding about a socket that is missing in one of the kubelet's directories.
func missingSocket(k agents.Kubelet, dir string) []doctor.Finding {
	if k.NotMounted { // the directory is not mounted into the container that the doctor runs in
		return []doctor.Finding{doctor.Unsure("kubelet", fmt.Sprintf("%s/%s is %s.", k.Root, dir, node.NotFromHere))}
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
		return []doctor.Finding{doctor.Unsure("kubelet", "The kubelet's pod resources API did not answer in time.")}
	case k.Error != "":
		return restartKubelet(k, "The kubelet's pod resources API does not answer: "+k.Error+".")
	}
	return nil
}

// kubeletAllocatable gives each resource an object name below the kubelet's, so that a fault of the kubelet explains
// the resource's fault.
func kubeletAllocatable(v *doctor.View, k agents.Kubelet) (found []doctor.Finding) {
	hcas, err := v.HCAs()
	inPods := err == nil && hcas.NetNSExclusive && len(hcas.Elsewhere) > 0
	for _, name := range slices.Sorted(maps.Keys(k.Allocatable)) {
		if resource.IsRDMA(name) && k.Allocatable[name] == 0 {
			text := fmt.Sprintf("The node previously had devices for %s, but now has none.", name)
			fix := "On this node, delete the pod of the device plugin that advertises " + name +
				". The DaemonSet recreates the pod"
			if inPods { // see k8snetworkplumbingwg/sriov-network-device-plugin#603
				text += " HCAs are in pods' network namespaces. Older versions of the SR-IOV device plugin do not find these " +
					"HCAs at startup."
				fix = "First, upgrade the SR-IOV device plugin, or delete the pods that use HCAs (rdma-spec status lists these " +
					"pods). " + fix
			}
			found = append(found, doctor.Fault("kubelet resource "+name, text, fix))
		}
	}
	return found
}
