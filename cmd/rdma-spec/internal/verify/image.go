// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"fmt"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/verbs"
)

// libraries finds libibverbs in the image, and its providers for the container's HCAs. If the image has none, a program
// can still have its own copy.
func (v *verification) libraries(held []heldHCA) {
	image := v.judged.Image
	if v.elsewhere && len(held) == 0 {
		return
	}
	if image.LibVerbs == "" {
		v.add("library", note,
			"libibverbs: not in the image's usual directories, so programs must bundle it or link it statically")
		return
	}
	v.add("library", doctor.OK, "libibverbs: %s", image.LibVerbs)
	told := map[string]bool{}
	for _, h := range held {
		driver := string(h.driver)
		if driver == "" || told[driver] {
			continue
		}
		told[driver] = true
		provider := image.Providers[driver]
		abi, known := verbs.ABIOf(driver)
		is := doctor.OK
		said := fmt.Sprintf("%s, for the kernel's ABI %d", provider, h.abi)
		switch {
		case provider == "" && known && h.abi != 0 && !abi.Has(h.abi):
			is = doctor.Unknown
			said = fmt.Sprintf("not found in libibverbs's directories (rdma-core's provider supports only %s of the "+
				"kernel's ABI, not %d): install %s", abi, h.abi, verbs.OfDriver(driver))
		case provider == "":
			is = doctor.Unknown
			said = "not found in libibverbs's directories (without it, libibverbs reports \"No IB devices found\"): install " +
				"it (package ibverbs-providers, libibverbs, or rdma-core)"
		case !known || h.abi == 0:
			is = note
			said = fmt.Sprintf("%s; it is unknown whether this provider supports the kernel's ABI %d", provider, h.abi)
		case !abi.Has(h.abi):
			is = doctor.Unknown
			said = fmt.Sprintf("%s, but the kernel's ABI is %d, and rdma-core's provider supports only %s "+
				"(for other versions, it reports \"does not support the kernel ABI\"): install the provider that matches the "+
				"kernel's driver",
				provider, h.abi, abi)
		}
		v.add("library", is, "provider %s for %s: %s", driver, h.name, said)
	}
}

// sharedMemory adds the finding about the size of /dev/shm, through which NCCL and other libraries pass messages.
func (v *verification) sharedMemory() {
	switch size := v.judged.SharedMem; {
	case size == nil && v.elsewhere:
	case size == nil:
		v.add("shared-memory", note,
			"/dev/shm: not mounted (NCCL and other programs might need it), or mounted without a size limit")
	case *size <= process.SmallSharedMemory:
		v.add("shared-memory", note,
			"/dev/shm: %s, too small for NCCL with several GPUs: mount an emptyDir with medium: Memory at /dev/shm", size)
	default:
		v.add("shared-memory", doctor.OK, "/dev/shm: %s", size)
	}
}
