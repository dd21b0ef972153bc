// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package pods

import "fmt"

// Device is a device of the node that a container gets.
type Device struct{ Host, Container string }

// Verbs returns the devices that an RDMA device plugin gives for an HCA, less umad and issm.
func Verbs(number int) []Device {
	uverbs := fmt.Sprintf("/dev/infiniband/uverbs%d", number)
	return []Device{{uverbs, uverbs}, {"/dev/infiniband/rdma_cm", "/dev/infiniband/rdma_cm"}}
}
