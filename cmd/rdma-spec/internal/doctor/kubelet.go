// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// QuestionKubelet asks for the kubelet. The answer is a Kubelet.
const QuestionKubelet Question = "kubelet.json"

// kubeletRoot is the kubelet's usual folder, where plugins look for its sockets.
const kubeletRoot = "/var/lib/kubelet"

// Kubelet is the node's kubelet.
type Kubelet struct {
	PID  int    `json:"pid"`            // 0 where none runs
	Unit string `json:"unit,omitempty"` // its systemd unit; "" where it is unknown
	Root string `json:"root,omitempty"` // its --root-dir
	// DevicePlugins and PodResources say whether its sockets exist, below its root.
	DevicePlugins bool `json:"devicePlugins"`
	PodResources  bool `json:"podResources"`
	// NotSeen means that not even the folder of the device plugins' socket is there: a container has it only if it is mounted.
	NotSeen bool `json:"notSeen,omitempty"`
	// Error is why the pod resources API does not answer.
	Error string `json:"error,omitempty"`
	// Allocatable counts the devices of each resource that it could give away, by the resource's name. A resource that device plugins or
	// pods of this node have had and that has no device now is there with 0.
	Allocatable map[string]int `json:"allocatable,omitempty"`
}

// restart is the command that restarts the kubelet, which can be a part of a platform's service.
func (k Kubelet) restart() string {
	return "systemctl restart " + strings.TrimSuffix(cmp.Or(k.Unit, "kubelet"), ".service")
}

// rdmaResources are what names of RDMA resources contain.
var rdmaResources = []string{"rdma", "hca", "infiniband", "roce", "hostdev", "spidernet.io/", "/efa", "/ib"}

// withKubelet looks at the kubelet where one runs.
func withKubelet(look func(k Kubelet) []Finding) func(*View) []Finding {
	return func(v *View) []Finding {
		var k Kubelet
		if err := v.Ask(QuestionKubelet, &k); err != nil {
			return []Finding{unknown("", "The kubelet is unknown: "+err.Error()+".")}
		}
		if k.PID == 0 {
			return notApplied("No kubelet runs here.")
		}
		return look(k)
	}
}

// kubeletChecks are the checks of the kubelet, and of the device plugins that register with it.
func kubeletChecks() []Check {
	asks := []Question{QuestionKubelet}
	return []Check{
		{
			ID: "kubelet-root", Family: "kubelet", Title: "The kubelet's folder is where plugins look for it.",
			Messages: []string{"dial unix /var/lib/kubelet/device-plugins/kubelet.sock: connect: no such file or directory"},
			Why:      "Device plugins and nri-rdma look for the kubelet's sockets in /var/lib/kubelet.",
			Asks:     asks, Reads: []string{"var/lib/kubelet/device-plugins/kubelet.sock"}, Look: kubeletAtRoot,
		},
		{
			ID: "kubelet-device-plugins", Family: "kubelet", Title: "The kubelet's socket for device plugins exists.",
			Messages: []string{"allocatable 0 after the kubelet restarted"},
			Why:      "No device plugin can register, and pods that request RDMA resources stay pending.",
			Asks:     asks, Look: withKubelet(kubeletDevicePlugins),
		},
		{
			ID: "kubelet-pod-resources", Family: "kubelet", Title: "The kubelet's pod resources API answers.",
			Messages: []string{"the kubelet did not report"},
			Why:      "Rules with resources cannot be decided, and RDMA containers that they could be about are refused.",
			Asks:     asks, Look: withKubelet(kubeletPodResources),
		},
		{
			ID: "kubelet-allocatable", Family: "kubelet", Title: "Each RDMA resource of the node has a device.",
			Messages: []string{"Insufficient rdma/hca_shared_devices_a", "allocatable 0 after the kubelet restarted"},
			Why:      "The device plugin is not registered, and pods that request the resource stay pending.",
			Asks:     asks, Needs: []string{"kubelet-device-plugins", "kubelet-pod-resources"}, Look: withKubelet(kubeletAllocatable),
		},
	}
}

func kubeletAtRoot(v *View) []Finding {
	return withKubelet(func(k Kubelet) []Finding {
		if k.Root == "" || path.Clean(k.Root) == kubeletRoot {
			return nil
		}
		if there, err := v.Exists("var/lib/kubelet/device-plugins/kubelet.sock"); there || err != nil {
			return nil // a link or a mount leads there
		}
		if k.NotSeen {
			return []Finding{k.notSeen("device-plugins")}
		}
		text := fmt.Sprintf("The kubelet's --root-dir is %s, and %s does not lead there.", k.Root, kubeletRoot)
		return []Finding{wrong("kubelet", text, fmt.Sprintf("mkdir -p %[2]s && mount --bind %[1]s %[2]s", k.Root, kubeletRoot))}
	})(v)
}

func kubeletDevicePlugins(k Kubelet) []Finding {
	switch {
	case k.DevicePlugins:
		return nil
	case k.NotSeen:
		return []Finding{k.notSeen("device-plugins")}
	}
	return []Finding{wrong("kubelet", fmt.Sprintf("%s/device-plugins/kubelet.sock does not exist.", k.Root), k.restart())}
}

// notSeen is the finding of a doctor in a container that one of the kubelet's folders is not mounted for.
func (k Kubelet) notSeen(folder string) Finding {
	return unknown("kubelet", fmt.Sprintf("%s/%s %s.", k.Root, folder, notFromHere))
}

func kubeletPodResources(k Kubelet) []Finding {
	switch {
	case !k.PodResources && k.NotSeen:
		return []Finding{k.notSeen("pod-resources")}
	case !k.PodResources:
		return []Finding{wrong("kubelet", fmt.Sprintf("%s/pod-resources/kubelet.sock does not exist.", k.Root), k.restart())}
	case k.Error != "":
		return []Finding{wrong("kubelet", "The kubelet's pod resources API does not answer: "+k.Error+".", k.restart())}
	}
	return nil
}

// kubeletAllocatable names each resource after the kubelet, so that what is wrong with the kubelet explains it.
func kubeletAllocatable(k Kubelet) (found []Finding) {
	for _, name := range slices.Sorted(maps.Keys(k.Allocatable)) {
		isRDMA := slices.ContainsFunc(rdmaResources, func(part string) bool { return strings.Contains(name, part) })
		if isRDMA && k.Allocatable[name] == 0 {
			text := fmt.Sprintf("The node had devices of %s, and has none now.", name)
			found = append(found, wrong("kubelet resource "+name, text, "Delete the pod of the device plugin that serves "+name+" on this node: its DaemonSet creates it again"))
		}
	}
	return found
}
