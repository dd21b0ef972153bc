// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"cmp"
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

// insideChecks returns the checks of the files and devices that the containers' processes see.
func insideChecks() []doctor.Check {
	return []doctor.Check{{
		ID: "container-hostpath", Family: "containers",
		Title:  "Each container that mounts /dev/infiniband can open the devices in that directory.",
		Impact: "Libraries fail because they find devices that the container cannot open.",
		Look:   eachContainer(containerHostPath),
	}, {
		ID: "container-provider", Family: "containers",
		Title:  "Each image with libibverbs also contains the provider for the container's HCAs.",
		Impact: "Without the provider for an HCA's driver, libibverbs does not find the HCA.",
		Look:   eachContainer(containerProvider),
	}, {
		ID: "container-devices", Family: "containers", Title: "Each RDMA container can open all HCAs that it sees.",
		Impact: "sysfs shows all HCAs to every container. Libraries might try to use an HCA that the container cannot " +
			"open.",
		Look: eachContainer(containerDevices),
	}, {
		ID: "container-gpu", Family: "containers",
		Title:      "Each GPU of a container is on the same NUMA node as one of the container's HCAs.",
		NoMessages: "benchmarks report low bandwidth",
		Impact:     "Transfers between CPU sockets are slower than transfers within a socket.",
		Reads:      []string{doctor.GPUFiles, "sys/bus/pci/devices/*/numa_node"}, Look: eachContainer(containerGPU),
	}, {
		ID: "container-shm", Family: "containers", Title: "The /dev/shm of each RDMA container is larger than 64 MiB.",
		Impact: "Some multi-process programs, such as those that use NCCL, need more than 64 MiB of shared " +
			"memory.",
		Look: eachContainer(containerSharedMemory),
	}}
}

func containerHostPath(_ *doctor.View, c node.Container) []doctor.Finding {
	if len(c.HostPaths) == 0 || c.AllDevices {
		return nil
	}
	can := "can open only " + strings.Join(c.HCAs, ", ")
	fix := "Remove the hostPath volume from the pod, because the device plugin injects the devices"
	if len(c.HCAs) == 0 {
		can = "cannot open any HCA"
		fix = "Remove the hostPath volume from the pod, and request a device plugin's RDMA resource instead"
	}
	return []doctor.Finding{doctor.Fault(containerObject(c), fmt.Sprintf(
		"%s is mounted from the node, but the container %s.", strings.Join(c.HostPaths, ", "), can), fix)}
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
		supports := fmt.Sprintf("The kernel driver has ABI version %d, but rdma-core's %s provider supports only %s", abi,
			want, has)
		switch {
		case slices.Contains(c.Opened, path.Base(device.Path)): // a program has opened the HCA, so there is a provider
		case c.Silent:
			return []doctor.Finding{doctor.Unsure(containerObject(c),
				"The image's files could not be read in time, so the image's providers are unknown. Run the doctor again with "+
					"a longer --timeout.")}
		case c.LibVerbs == "":
			return []doctor.Finding{doctor.Unsure(containerObject(c),
				"The image has no libibverbs in the usual directories, so the image's providers are unknown.")}
		case want == "":
			found = append(found, doctor.Unsure(object, fmt.Sprintf("The provider for the %q driver with ABI %d is unknown. "+
				"The image needs the provider that matches the node's driver.", h.Driver, abi)))
		case file == "" && foreign:
			found = append(found, doctor.Fault(object, supports+". The matching provider is neither in the image "+
				"nor in the distribution's packages.", "In the image, install "+ofDriver(v, want)))
		case file == "":
			text := fmt.Sprintf("The image has libibverbs, but lacks the %s provider. Providers in the image: %s.", want,
				cmp.Or(strings.Join(slices.Sorted(maps.Keys(c.Providers)), ", "), "none"))
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

// ofDriver names the provider that belongs to the node's driver and is not part of rdma-core. If the node has the
// provider's file, ofDriver also names this file.
func ofDriver(v *doctor.View, provider string) string {
	text := verbs.OfDriver(provider)
	for _, dir := range verbs.LibraryDirs {
		for _, in := range []string{"", "/libibverbs"} {
			// a support bundle contains no libraries
			if files, err := v.Files.Match(dir + in + "/lib" + provider + "-rdmav*.so"); err == nil && len(files) > 0 {
				return text + " (the node's copy of the provider is /" + files[0] + ")"
			}
		}
	}
	return text
}

// containerDevices reports notes, not faults.
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
	text := fmt.Sprintf("The container has %d of the node's %d HCAs", len(c.HCAs), len(node.HCAs))
	if len(names) > 0 {
		text += fmt.Sprintf(". To keep NCCL from trying the other HCAs, set NCCL_IB_HCA=%s", strings.Join(names, ","))
	}
	return []doctor.Finding{doctor.Told(containerObject(c), "%s. Programs that use RDMA_CM need rdma-core 37 or later "+
		"in the image, access to all HCAs, or the exclusive network namespace mode. In rdma-core versions before 37, "+
		"rdma_get_devices fails if one of the HCAs cannot be opened.", text)}
}

// containerSharedMemory reports notes, not faults.
func containerSharedMemory(_ *doctor.View, c node.Container) []doctor.Finding {
	if !c.Known || !c.RDMA || c.SharedMem == nil || *c.SharedMem > process.SmallSharedMemory {
		return nil
	}
	return []doctor.Finding{doctor.Told(containerObject(c),
		"The size of the container's /dev/shm is %s. To increase the size, mount an emptyDir with medium: Memory at "+
			"/dev/shm.", c.SharedMem)}
}

var gpuMinor = regexp.MustCompile(`Device Minor:\s+([0-9]+)`)

// containerGPU reports notes, not faults.
func containerGPU(v *doctor.View, c node.Container) (found []doctor.Finding) {
	files, _ := v.Glob(doctor.GPUFiles) // without these files, NVIDIA's driver is not loaded
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
			"The container's GPU %s is on NUMA node %s, but none of the container's HCAs (%s) is.", gpu, numa,
			strings.Join(c.HCAs, ", ")))
	}
	return found
}
