// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hcatest builds copies of RDMA nodes for tests. A copy contains sysfs in the kernel's layout, and a table of
// the device nodes, because neither Git nor an unprivileged test can create real device nodes. A copy is a directory
// that can be used as a root for hca.Scan and --root. Package hcatest does not import package hca.
//
// All tests of this project share the named nodes (V100, A100, …). To build another node, use a Node, or change the
// Files of a named node.
package hcatest
