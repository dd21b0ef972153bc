// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/verbs"
	"github.com/rdma-spec/rdma-spec/spec"
)

// libraries finds libibverbs in the image, and its providers for the container's HCAs. Where there are none, a program may still have its own.
func (v *verification) libraries(held []heldHCA) {
	if v.elsewhere && len(held) == 0 {
		return
	}
	library := v.find("libibverbs.so.1*")
	if library == "" {
		v.add(checkLibrary, note, "libibverbs: not in the image's usual folders: a program needs its own, or must be linked with it statically")
		return
	}
	v.add(checkLibrary, good, "libibverbs: %s", library)
	told := map[string]bool{}
	for _, h := range held {
		driver := v.driver(h)
		if driver == "" || told[driver] {
			continue
		}
		told[driver] = true
		provider := v.find("libibverbs/lib" + driver + "-rdmav*.so")
		switch abi, known := verbs.ABIOf(driver); {
		case provider == "":
			v.add(checkLibrary, unknown, "provider %s for %s: not beside libibverbs, which then reports No IB devices found: install it (ibverbs-providers, libibverbs, rdma-core)", driver, h.name())
		case !known || h.hca.ABIVersion == 0:
			v.add(checkLibrary, note, "provider %s for %s: %s; which versions of the kernel's ABI (%d) it supports is not known here", driver, h.name(), provider, h.hca.ABIVersion)
		case !abi.Has(h.hca.ABIVersion):
			v.add(checkLibrary, unknown, "provider %s for %s: %s; the kernel's ABI is %d, and rdma-core's provider supports %d to %d; with another ABI it reports \"does not support the kernel ABI\": install the provider that belongs to the kernel's driver",
				driver, h.name(), provider, h.hca.ABIVersion, abi.Least, abi.Most)
		default:
			v.add(checkLibrary, good, "provider %s for %s: %s, for the kernel's ABI %d", driver, h.name(), provider, h.hca.ABIVersion)
		}
	}
}

// find returns the place in the image of the first file of a pattern that can be followed, "" if there is none.
func (v *verification) find(pattern string) string {
	for _, folder := range verbs.LibraryFolders {
		files, _ := filepath.Glob(filepath.Join(v.image, folder, pattern)) // the patterns are well-formed
		for _, file := range files {
			if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
				place, _ := strings.CutPrefix(file, filepath.Clean(v.image))
				return "/" + strings.TrimPrefix(place, "/")
			}
		}
	}
	return ""
}

// sharedMemory adds the fact about the size of /dev/shm, through which NCCL and others pass messages.
func (v *verification) sharedMemory() {
	const mebibyte = 1 << 20
	size, mounted := v.shared(filepath.Join(v.image, "dev/shm"))
	switch {
	case !mounted && v.elsewhere:
	case !mounted:
		v.add(checkShared, note, "/dev/shm: not mounted: NCCL and others may need it")
	case size <= uint64(doctor.SmallSharedMemory):
		v.add(checkShared, note, "/dev/shm: %s, too little for NCCL with several GPUs: mount an emptyDir with medium: Memory there", spec.Limit(size))
	default:
		v.add(checkShared, good, "/dev/shm: %s", spec.Limit(size/mebibyte*mebibyte))
	}
}

// attribute returns the text of an attribute of sysfs, "" where there is none.
func attribute(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}
