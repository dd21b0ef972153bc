// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hcatest builds copies of RDMA nodes for tests: sysfs in the kernel's layout, and a table of the device nodes,
// since neither git nor an unprivileged test can contain real ones. It returns a directory that can be used as a root
// (hca.Scan, --root). It does not know package hca.
//
// All tests of this project share the named nodes (V100, A100, …). To build another node, use a Node, or change the
// Files of a named one.
package hcatest
