// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

// Function says which kind of function of its PCI card an HCA is.
type Function string

// The functions.
const (
	FunctionPhysical Function = "physical" // also soft HCAs, and those on other buses
	FunctionVirtual  Function = "virtual"  // SR-IOV: its PCI device has a physfn
	FunctionScalable Function = "scalable" // mlx5_core.sf.N on the auxiliary bus; no physfn
)

// VerbsByNumber says whether a character device number is a verbs device of the node at root.
func VerbsByNumber(root string, n Number) (Device, bool, error) {
	verbs, err := VerbsNumbers(root)
	d, ok := verbs[n]
	return d, ok, err
}
