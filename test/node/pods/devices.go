// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package pods

import "fmt"

// Device is a device of the node that is injected into a container.
type Device struct{ Host, Container string }

// Verbs returns the devices that an RDMA device plugin injects for an HCA, without umad and issm.
func Verbs(number int) []Device {
	uverbs := fmt.Sprintf("/dev/infiniband/uverbs%d", number)
	return []Device{{uverbs, uverbs}, {"/dev/infiniband/rdma_cm", "/dev/infiniband/rdma_cm"}}
}
