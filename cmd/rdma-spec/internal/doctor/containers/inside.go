// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/verbs"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// insideChecks are the checks of what the processes of containers see.
func insideChecks() []doctor.Check {
	return []doctor.Check{
		{
			ID: "container-hostpath", Family: "containers",
			Title:    "No container has /dev/infiniband from a hostPath without the right to open it.",
			Messages: []string{"fi_getinfo: -61"},
			Why:      "Libraries find devices that the container cannot open, and give up.",
			Look:     eachContainer(containerHostPath),
		},
		{
			ID: "container-netdev", Family: "containers",
			Title:    "Each container with a network of its own has an interface of the RoCE HCAs that it holds.",
			Messages: []string{"Failed to query GID", "No data available", "rdma_create_ep: No such device"},
			Why:      "Without such an interface no GID can be used, and no connection be made.",
			Reads:    []string{gidFiles("*", "*")}, Needs: []string{"port-active", "container-hca"},
			Look: eachContainer(containerNetdev),
		},
		{
			ID: "container-provider", Family: "containers",
			Title:    "Each image with libibverbs has the provider for the HCAs of its container.",
			Messages: []string{"No IB devices found", "does not support the kernel ABI of 6"},
			Why:      "libibverbs does not see an HCA without the provider for its driver.",
			Look:     eachContainer(containerProvider),
		},
		{
			ID: "container-devices", Family: "containers", Title: "Each RDMA container holds all HCAs that it sees.",
			Messages: []string{"ibv_open_device failed", "NET/IB : No device found", "Using network Socket"},
			Why:      "sysfs shows all HCAs to every container, and libraries may try one that the container does not hold.",
			Look:     eachContainer(containerDevices),
		},
		{
			ID: "container-gid-index", Family: "containers",
			Title:    "NCCL_IB_GID_INDEX of each container is the index of a GID of its own.",
			Messages: []string{"vendor err 129", "Call to ibv_modify_qp failed with error No such device"},
			Why:      "The index of a pod's GID differs from pod to pod, and no connection can be made with that of another.",
			Reads:    []string{gidFiles("*", "*")}, Needs: []string{"port-active", "container-hca", "container-netdev"},
			Look: eachContainer(containerGIDIndex),
		},
		{
			ID: "container-shm", Family: "containers", Title: "Each RDMA container has more than 64 MiB in /dev/shm.",
			Messages: []string{"Error while creating shared memory segment /dev/shm/nccl"},
			Why:      "Programs such as NCCL need more for several processes.",
			Look:     eachContainer(containerSharedMemory),
		},
	}
}

func containerHostPath(_ *doctor.View, c node.Container, _ node.Containers) []doctor.Finding {
	if len(c.HostPaths) == 0 || c.AllDevices {
		return nil
	}
	if len(c.HCAs) == 0 {
		text := fmt.Sprintf("%s is mounted from the node, and the container can open none of its HCAs.",
			strings.Join(c.HostPaths, ", "))
		return []doctor.Finding{doctor.Fault(containerObject(c), text,
			"Remove the hostPath volume from the pod, and request an RDMA resource of a device plugin instead")}
	}
	text := fmt.Sprintf("%s is mounted from the node, and the container can open only %s.", strings.Join(c.HostPaths,
		", "), strings.Join(c.HCAs, ", "))
	return []doctor.Finding{doctor.Fault(containerObject(c), text,
		"Remove the hostPath volume from the pod: the device plugin gives the devices")}
}

// gidFiles are the GIDs of ports, as a pattern or of one port.
func gidFiles(name, port string) string {
	return "sys/class/infiniband/" + name + "/ports/" + port + "/gids/*"
}

// eachGIDTable looks at the ports with RoCE of the HCAs that a container holds. The GIDs of other ports belong to no
// network namespace.
func eachGIDTable(v *doctor.View, c node.Container,
	look func(object string, p hca.Port, table []process.GID, err error) doctor.Finding) (found []doctor.Finding) {
	for _, h := range held(v, c) {
		for _, p := range h.Ports {
			if p.LinkLayer != "Ethernet" || h.NodeType != "CA" {
				continue
			}
			var table []process.GID
			files, err := v.Glob(gidFiles(h.Name, strconv.Itoa(p.Number)))
			if err == nil {
				table, err = process.GIDs(files, v.Read)
			}
			if f := look(fmt.Sprintf("%s HCA %s", containerObject(c), h.Name), p, table, err); f.Status != "" {
				found = append(found, f)
			}
		}
	}
	return found
}

// containerNetdev compares addresses: pods call their interfaces as they like.
func containerNetdev(v *doctor.View, c node.Container, _ node.Containers) []doctor.Finding {
	if !c.Known || !c.OwnNetwork {
		return nil
	}
	return eachGIDTable(v, c, func(object string, p hca.Port, table []process.GID, err error) doctor.Finding {
		switch {
		case !p.Active() || slices.ContainsFunc(table, func(g process.GID) bool { return c.Owns(g.Address) }):
			return doctor.Finding{}
		case err != nil:
			return doctor.Unsure(object, "Its GIDs are unknown: "+err.Error()+".")
		case len(table) == 0:
			return doctor.Unsure(object, "The driver does not list its GIDs.")
		case c.Silent:
			return doctor.Unsure(object,
				"The files of the container did not answer in time, so the MAC addresses of its interfaces are unknown.")
		}
		has := fmt.Sprint(c.Addresses)
		if len(c.Addresses) == 0 {
			has = "none but those of lo"
		}
		return doctor.Fault(object, fmt.Sprintf("None of the container's addresses (%s) is a GID of the HCA.",
			strings.Trim(has, "[]")),
			"Give the pod an interface of the HCA (macvlan, ipvlan or SR-IOV with Multus), or set hostNetwork: true")
	})
}

func containerProvider(v *doctor.View, c node.Container, _ node.Containers) (found []doctor.Finding) {
	if !c.Known {
		return nil
	}
	for _, h := range held(v, c) {
		want, _ := verbs.Provider(h, func(name string) string { return doctor.Attribute(v, name) })
		object := fmt.Sprintf("%s HCA %s", containerObject(c), h.Name)
		switch {
		case c.Silent:
			return []doctor.Finding{doctor.Unsure(containerObject(c),
				"The files of its image did not answer in time, so its providers are unknown: try again with a longer --patience.")}
		case c.LibVerbs == "":
			return []doctor.Finding{doctor.Unsure(containerObject(c),
				"Its image has no libibverbs in the usual places, so its providers are unknown.")}
		case want == "":
			found = append(found, doctor.Unsure(object, fmt.Sprintf("Which provider is for the driver %q is unknown.",
				h.Driver)))
		case c.Providers[want] == "":
			text := fmt.Sprintf("Its image has libibverbs with the providers %s, and not %s.",
				strings.Join(slices.Sorted(maps.Keys(c.Providers)), ", "), want)
			found = append(found, doctor.Fault(object, text,
				"Install rdma-core's provider in the image: apt-get install ibverbs-providers, or dnf install libibverbs"))
		}
	}
	return found
}

// containerDevices reports what is not a fault.
func containerDevices(v *doctor.View, c node.Container, _ node.Containers) []doctor.Finding {
	node, err := v.HCAs()
	if err != nil || !c.RDMA || c.AllDevices || len(c.HCAs) == 0 || len(c.HCAs) >= len(node.HCAs) {
		return nil
	}
	text := fmt.Sprintf("It holds %d of the node's %d HCAs: NCCL_IB_HCA=%s keeps NCCL from the others.", len(c.HCAs),
		len(node.HCAs), strings.Join(c.HCAs, ","))
	return []doctor.Finding{{Status: doctor.OK, Object: containerObject(c), Text: text}}
}

// containerGIDIndex looks at the index in the container's spec. What a program sets by itself is not seen.
func containerGIDIndex(v *doctor.View, c node.Container, _ node.Containers) []doctor.Finding {
	if !c.Known || c.GIDIndex == nil {
		return nil
	}
	return eachGIDTable(v, c, func(object string, _ hca.Port, table []process.GID, err error) doctor.Finding {
		i := slices.IndexFunc(table, func(g process.GID) bool { return g.Index == *c.GIDIndex })
		text := fmt.Sprintf("Its NCCL_IB_GID_INDEX is %d, and the HCA has no GID there.", *c.GIDIndex)
		if i >= 0 {
			text = fmt.Sprintf("Its NCCL_IB_GID_INDEX is %d, which is the GID %s, and the container does not have that address.",
				*c.GIDIndex, table[i].Address)
		}
		if err != nil || len(table) == 0 || i >= 0 && (!c.OwnNetwork || c.Silent || c.Owns(table[i].Address)) {
			return doctor.Finding{} // container-netdev says what is unknown
		}
		return doctor.Fault(object, text,
			"Remove NCCL_IB_GID_INDEX from the pod: NCCL 2.21 and later find the GID by themselves, in all pods from 2.26")
	})
}

// containerSharedMemory reports what is not a fault.
func containerSharedMemory(_ *doctor.View, c node.Container, _ node.Containers) []doctor.Finding {
	if !c.Known || !c.RDMA || c.SharedMem == nil || *c.SharedMem > process.SmallSharedMemory {
		return nil
	}
	text := fmt.Sprintf("Its /dev/shm has %s; an emptyDir with medium: Memory at /dev/shm gives more.", c.SharedMem)
	return []doctor.Finding{{Status: doctor.OK, Object: containerObject(c), Text: text}}
}
