// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hcatest builds copies of RDMA nodes for tests: sysfs as the kernel
// lays it out, and a table of the device nodes, since neither git nor an
// unprivileged test can hold real ones. The directory that it returns is a root
// for every reader that takes one (hca.Scan, --root).
//
// The named nodes (V100, A100, …) are what the tests of this project agree
// on. Others are built from a Node, or from a named one's Files with some of
// them changed.
package hcatest
