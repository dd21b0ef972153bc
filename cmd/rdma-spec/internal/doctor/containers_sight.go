// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/verbs"
)

// SmallSharedMemory is the size of /dev/shm that a runtime gives by default.
const SmallSharedMemory = Bytes(64 << 20)

// containerSightChecks are the checks of what the processes of containers see.
func containerSightChecks() []Check {
	asks := []Question{QuestionContainers, QuestionRuntimes}
	return []Check{
		{
			ID: "container-hostpath", Family: "containers", Title: "No container has /dev/infiniband from a hostPath without the right to open it.",
			Messages: []string{"fi_getinfo: -61"},
			Why:      "Libraries find devices that the container cannot open, and give up.",
			Asks:     asks, Look: eachContainer(containerHostPath),
		},
		{
			ID: "container-netdev", Family: "containers", Title: "Each container with a network of its own has an interface of the RoCE HCAs that it holds.",
			Messages: []string{"Failed to query GID", "No data available", "rdma_create_ep: No such device"},
			Why:      "Without such an interface no GID can be used, and no connection be made.",
			Asks:     asks, Reads: []string{ndevsPattern}, Needs: []string{"port-active", "container-hca"}, Look: eachContainer(containerNetdev),
		},
		{
			ID: "container-provider", Family: "containers", Title: "Each image with libibverbs has the provider for the HCAs of its container.",
			Messages: []string{"No IB devices found", "does not support the kernel ABI of 6"},
			Why:      "libibverbs does not see an HCA without the provider for its driver.",
			Asks:     asks, Look: eachContainer(containerProvider),
		},
		{
			ID: "container-devices", Family: "containers", Title: "Each RDMA container holds all HCAs that it sees.",
			Messages: []string{"ibv_open_device failed", "NET/IB : No device found", "Using network Socket"},
			Why:      "sysfs shows all HCAs to every container, and libraries may try one that the container does not hold.",
			Asks:     asks, Look: eachContainer(containerDevices),
		},
		{
			ID: "container-gid-index", Family: "containers", Title: "NCCL_IB_GID_INDEX of each container is the index of a GID of its own.",
			Messages: []string{"vendor err 129", "Call to ibv_modify_qp failed with error No such device"},
			Why:      "The index of a pod's GID differs from pod to pod, and no connection can be made with that of another.",
			Asks:     asks, Reads: []string{ndevsPattern}, Needs: []string{"port-active", "container-hca", "container-netdev"}, Look: eachContainer(containerGIDIndex),
		},
		{
			ID: "container-shm", Family: "containers", Title: "Each RDMA container has more than 64 MiB in /dev/shm.",
			Messages: []string{"Error while creating shared memory segment /dev/shm/nccl"},
			Why:      "Programs such as NCCL need more for several processes.",
			Asks:     asks, Look: eachContainer(containerSharedMemory),
		},
	}
}

func containerHostPath(_ *View, c Container, _ Containers) []Finding {
	if len(c.HostPaths) == 0 || c.AllDevices {
		return nil
	}
	if len(c.HCAs) == 0 {
		text := fmt.Sprintf("%s is mounted from the node, and the container can open none of its HCAs.", strings.Join(c.HostPaths, ", "))
		return []Finding{wrong(c.object(), text, "Remove the hostPath volume from the pod, and request an RDMA resource of a device plugin instead")}
	}
	text := fmt.Sprintf("%s is mounted from the node, and the container can open only %s.", strings.Join(c.HostPaths, ", "), strings.Join(c.HCAs, ", "))
	return []Finding{wrong(c.object(), text, "Remove the hostPath volume from the pod: the device plugin gives the devices")}
}

// ndevsPattern are the interfaces of GIDs. A name is that in the network namespace of the interface.
const ndevsPattern = "sys/class/infiniband/*/ports/*/gid_attrs/ndevs/*"

// containerNetdev compares names. Where none agrees, the container has no interface of the HCA. Where one does, it is the HCA's unless the
// node's own interface has that name.
func containerNetdev(v *View, c Container, _ Containers) (found []Finding) {
	if !c.Seen || !c.OwnNetwork {
		return nil
	}
	for _, h := range held(v, c) {
		for _, p := range h.Ports {
			if p.LinkLayer != "Ethernet" || !p.Active() {
				continue
			}
			object := fmt.Sprintf("%s HCA %s", c.object(), h.Name)
			names, err := gidInterfaces(v, h.Name, p.Number)
			if err != nil {
				found = append(found, unknown(object, "The interfaces of its GIDs are unknown: "+err.Error()+"."))
				continue
			}
			if f := interfaceOf(c.Links, names, p.Netdevs); f.Status != "" {
				f.Object = object
				found = append(found, f)
			}
		}
	}
	return found
}

// interfaceOf judges the interfaces of a network namespace by those of a port's GIDs and by the node's own of that HCA.
func interfaceOf(links, gids, own []string) Finding {
	shared := slices.DeleteFunc(slices.Clone(links), func(link string) bool { return !slices.Contains(gids, link) })
	switch {
	case len(gids) == 0:
		return unknown("", "The driver does not say which interfaces its GIDs belong to.")
	case slices.ContainsFunc(shared, func(link string) bool { return !slices.Contains(own, link) }):
		return Finding{}
	case len(shared) > 0:
		return unknown("", fmt.Sprintf("Its interface %s may be the HCA's: the node's own has the same name.", shared[0]))
	}
	has := strings.Join(links, ", ")
	if has == "" {
		has = "none but lo"
	}
	text := fmt.Sprintf("None of its interfaces (%s) is one of the HCA, whose GIDs belong to %s.", has, strings.Join(gids, ", "))
	return wrong("", text, "Give the pod an interface of the HCA (macvlan, ipvlan or SR-IOV with Multus), or set hostNetwork: true")
}

// gidInterface is the file with the interface of a port's GID.
func gidInterface(name string, port int, index string) string {
	return fmt.Sprintf("sys/class/infiniband/%s/ports/%d/gid_attrs/ndevs/%s", name, port, index)
}

// gidInterfaces returns the names of the interfaces that a port has GIDs for.
func gidInterfaces(v *View, name string, port int) (names []string, err error) {
	files, err := v.Glob(gidInterface(name, port, "*"))
	if err != nil {
		return nil, err
	}
	slices.SortFunc(files, func(a, b string) int { return strings.Compare(path.Base(a), path.Base(b)) })
	for _, file := range files {
		text, err := v.Read(file)
		if text = strings.TrimSpace(text); err == nil && text != "" && !slices.Contains(names, text) {
			names = append(names, text)
		} else if errors.Is(err, fs.ErrPermission) {
			return nil, err // the others say that the entry is empty
		}
	}
	return names, nil
}

func containerProvider(v *View, c Container, _ Containers) (found []Finding) {
	if !c.Seen {
		return nil
	}
	for _, h := range held(v, c) {
		if device, ok := h.Verbs(); ok {
			h.ABIVersion, _ = strconv.Atoi(attribute(v, "sys/class/infiniband_verbs/"+path.Base(device.Path)+"/abi_version"))
		}
		want := verbs.Provider(h, attribute(v, "sys/class/infiniband/"+h.Name+"/parent"))
		object := fmt.Sprintf("%s HCA %s", c.object(), h.Name)
		switch {
		case c.Silent:
			return []Finding{unknown(c.object(), "The files of its image did not answer in time, so its providers are unknown: try again with a longer --patience.")}
		case !c.LibVerbs:
			return []Finding{unknown(c.object(), "Its image has no libibverbs in the usual places, so its providers are unknown.")}
		case want == "":
			found = append(found, unknown(object, fmt.Sprintf("Which provider is for the driver %q is unknown.", h.Driver)))
		case !slices.Contains(c.Providers, want):
			text := fmt.Sprintf("Its image has libibverbs with the providers %s, and not %s.", strings.Join(c.Providers, ", "), want)
			found = append(found, wrong(object, text, "Install rdma-core's provider in the image: apt-get install ibverbs-providers, or dnf install libibverbs"))
		}
	}
	return found
}

// containerDevices reports what is not a fault.
func containerDevices(v *View, c Container, _ Containers) []Finding {
	node, err := v.HCAs()
	if err != nil || !c.RDMA || c.AllDevices || len(c.HCAs) == 0 || len(c.HCAs) >= len(node.HCAs) {
		return nil
	}
	text := fmt.Sprintf("It holds %d of the node's %d HCAs: NCCL_IB_HCA=%s keeps NCCL from the others.", len(c.HCAs), len(node.HCAs), strings.Join(c.HCAs, ","))
	return []Finding{{Status: OK, Object: c.object(), Text: text}}
}

// containerGIDIndex looks at the index in the container's spec. What a program sets by itself is not seen.
func containerGIDIndex(v *View, c Container, _ Containers) (found []Finding) {
	if !c.Seen || c.GIDIndex == nil {
		return nil
	}
	for _, h := range held(v, c) {
		for _, p := range h.Ports {
			names, err := gidInterfaces(v, h.Name, p.Number)
			if p.LinkLayer != "Ethernet" || err != nil || len(names) == 0 {
				continue // container-netdev says so
			}
			has := attribute(v, gidInterface(h.Name, p.Number, fmt.Sprint(*c.GIDIndex)))
			text := fmt.Sprintf("Its NCCL_IB_GID_INDEX is %d, which is the GID of interface %s, and the container does not have that interface.", *c.GIDIndex, has)
			if has == "" {
				text = fmt.Sprintf("Its NCCL_IB_GID_INDEX is %d, and the HCA has no GID there.", *c.GIDIndex)
			}
			if has == "" || c.OwnNetwork && !slices.Contains(c.Links, has) {
				found = append(found, wrong(fmt.Sprintf("%s HCA %s", c.object(), h.Name), text,
					"Remove NCCL_IB_GID_INDEX from the pod: NCCL 2.21 and later find the GID by themselves, in all pods from 2.26"))
			}
		}
	}
	return found
}

// containerSharedMemory reports what is not a fault.
func containerSharedMemory(_ *View, c Container, _ Containers) []Finding {
	if !c.Seen || !c.RDMA || c.SharedMem == nil || *c.SharedMem > SmallSharedMemory {
		return nil
	}
	text := fmt.Sprintf("Its /dev/shm has %s; an emptyDir with medium: Memory at /dev/shm gives more.", c.SharedMem)
	return []Finding{{Status: OK, Object: c.object(), Text: text}}
}
