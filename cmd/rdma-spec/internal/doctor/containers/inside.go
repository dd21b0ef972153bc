// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"fmt"
	"maps"
	"path"
	"regexp"
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
	return []doctor.Check{{
		ID: "container-hostpath", Family: "containers",
		Title:  "Each container that mounts /dev/infiniband can open its devices.",
		Impact: "Libraries find devices that the container cannot open, and fail.",
		Look:   eachContainer(containerHostPath),
	}, {
		ID: "container-provider", Family: "containers",
		Title:  "Each image with libibverbs contains the provider for its container's HCAs.",
		Impact: "Without the provider for an HCA's driver, libibverbs does not find the HCA.",
		Look:   eachContainer(containerProvider),
	}, {
		ID: "container-devices", Family: "containers", Title: "Each RDMA container can open all HCAs that it sees.",
		Impact: "sysfs shows all HCAs to every container, so libraries might try an HCA that the container cannot open.",
		Look:   eachContainer(containerDevices),
	}, {
		ID: "container-gpu", Family: "containers",
		Title:      "Each of a container's GPUs is on the same NUMA node as one of its HCAs.",
		NoMessages: "bandwidth tests report low bandwidth",
		Impact:     "Transfers from one CPU socket to another are slower.",
		Reads:      []string{doctor.GPUFiles, "sys/bus/pci/devices/*/numa_node"}, Look: eachContainer(containerGPU),
	}, {
		ID: "container-shm", Family: "containers", Title: "The /dev/shm of each RDMA container is larger than 64 MiB.",
		Impact: "Programs that use NCCL, for example, need more shared memory if they have several processes.",
		Look:   eachContainer(containerSharedMemory),
	}}
}

func containerHostPath(_ *doctor.View, c node.Container) []doctor.Finding {
	if len(c.HostPaths) == 0 || c.AllDevices {
		return nil
	}
	can := "only " + strings.Join(c.HCAs, ", ")
	fix := "Remove the hostPath volume from the pod: the device plugin adds the devices"
	if len(c.HCAs) == 0 {
		can = "none of its HCAs"
		fix = "Remove the hostPath volume from the pod, and request an RDMA resource of a device plugin instead"
	}
	return []doctor.Finding{doctor.Fault(containerObject(c), fmt.Sprintf(
		"%s is mounted from the node, but the container can open %s.", strings.Join(c.HostPaths, ", "), can), fix)}
}

func containerProvider(v *doctor.View, c node.Container) (found []doctor.Finding) {
	if !c.Known {
		return nil
	}
	for _, h := range heldHCAs(v, c) {
		want, abi := verbs.Provider(h, func(name string) string { return doctor.Attribute(v, name) })
		device, _ := h.Verbs()
		file := verbs.Find(c.Providers, want, h)
		object := fmt.Sprintf("%s HCA %s", containerObject(c), h.Name)
		has, known := verbs.ABIOf(want)
		foreign := known && abi != 0 && !has.Has(abi)
		supports := fmt.Sprintf("The kernel driver has ABI version %d, but rdma-core's provider %s supports only %s", abi,
			want, has)
		switch {
		case slices.Contains(c.Opened, path.Base(device.Path)): // a program has opened it with some provider
		case c.Silent:
			return []doctor.Finding{doctor.Unsure(containerObject(c),
				"The image's files could not be read in time, so its providers are unknown. Try again with a longer --timeout.")}
		case c.LibVerbs == "":
			return []doctor.Finding{doctor.Unsure(containerObject(c),
				"Its image has no libibverbs in the usual places, so its providers are unknown.")}
		case want == "":
			found = append(found, doctor.Unsure(object, fmt.Sprintf("The provider for the driver %q with ABI %d is unknown. "+
				"The image needs the provider that matches the node's driver.", h.Driver, abi)))
		case file == "" && foreign:
			found = append(found, doctor.Fault(object, supports+". The image has no provider, and no package of the "+
				"distribution contains the right one.", "In the image, install "+ofDriver(v, want)))
		case file == "":
			text := fmt.Sprintf("Its image has libibverbs, but not the provider %s. It has: %s.", want,
				strings.Join(slices.Sorted(maps.Keys(c.Providers)), ", "))
			found = append(found, doctor.Fault(object, text,
				"Add rdma-core's providers to the image: apt-get install ibverbs-providers, or dnf install libibverbs. "+
					"Then recreate the pod"))
		case foreign:
			found = append(found, doctor.Unsure(object, supports+". If programs in the container find no HCA, install "+
				ofDriver(v, want)+"."))
		}
	}
	return found
}

// ofDriver names the provider that belongs to the node's driver, which is not rdma-core's, and where the node has one.
func ofDriver(v *doctor.View, provider string) string {
	text := verbs.OfDriver(provider)
	for _, dir := range verbs.LibraryDirs {
		for _, in := range []string{"", "/libibverbs"} {
			// a copy has no libraries
			if files, err := v.Files.Match(dir + in + "/lib" + provider + "-rdmav*.so"); err == nil && len(files) > 0 {
				return text + " (the node has it: /" + files[0] + ")"
			}
		}
	}
	return text
}

// containerDevices reports what is not a fault.
func containerDevices(v *doctor.View, c node.Container) []doctor.Finding {
	node, err := v.HCAs()
	if err != nil || !c.RDMA || c.AllDevices || c.OwnNetwork && node.NetNSExclusive || len(c.HCAs) == 0 ||
		len(c.HCAs) >= len(node.HCAs) {
		return nil
	}
	var names []string
	for _, h := range heldHCAs(v, c) {
		if h.ForPrograms() {
			names = append(names, h.Name)
		}
	}
	text := fmt.Sprintf("It has %d of the node's %d HCAs", len(c.HCAs), len(node.HCAs))
	if len(names) > 0 {
		text += fmt.Sprintf(". Set NCCL_IB_HCA=%s to keep NCCL from trying the others", strings.Join(names, ","))
	}
	return []doctor.Finding{doctor.Told(containerObject(c), "%s. Programs that use RDMA_CM need rdma-core 37 or later "+
		"in the image, access to all HCAs, or exclusive mode. Before version 37, rdma_get_devices fails if it cannot "+
		"open one of the HCAs.", text)}
}

// containerSharedMemory reports what is not a fault.
func containerSharedMemory(_ *doctor.View, c node.Container) []doctor.Finding {
	if !c.Known || !c.RDMA || c.SharedMem == nil || *c.SharedMem > process.SmallSharedMemory {
		return nil
	}
	return []doctor.Finding{doctor.Told(containerObject(c),
		"The size of its /dev/shm is %s. For more, mount an emptyDir with medium: Memory at /dev/shm.", c.SharedMem)}
}

var gpuMinor = regexp.MustCompile(`Device Minor:\s+([0-9]+)`)

// containerGPU reports what is not a fault.
func containerGPU(v *doctor.View, c node.Container) (found []doctor.Finding) {
	files, _ := v.Glob(doctor.GPUFiles) // without them there is no driver of NVIDIA
	hcas := heldHCAs(v, c)
	if slices.ContainsFunc(hcas, func(h hca.HCA) bool { return h.NUMANode < 0 }) {
		return nil
	}
	for _, file := range files {
		text, _ := v.Read(file)
		gpu := path.Base(path.Dir(file))
		minor := gpuMinor.FindStringSubmatch(text)
		numa := doctor.Attribute(v, "sys/bus/pci/devices/"+gpu+"/numa_node")
		if minor == nil || !slices.ContainsFunc(c.GPUs, func(n int) bool { return strconv.Itoa(n) == minor[1] }) ||
			numa == "" || numa == "-1" || len(hcas) == 0 ||
			slices.ContainsFunc(hcas, func(h hca.HCA) bool { return strconv.Itoa(h.NUMANode) == numa }) {
			continue
		}
		found = append(found, doctor.Told(containerObject(c),
			"Its GPU %s is on NUMA node %s, but none of its HCAs (%s) is on that node.", gpu, numa, strings.Join(c.HCAs, ", ")))
	}
	return found
}
