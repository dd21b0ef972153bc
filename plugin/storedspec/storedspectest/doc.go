// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package storedspectest provides a server for tests of stored specs, which stores containers like containerd and has
// the same API on a Unix socket, and the spec of a training job's container. It does not know package storedspec.
// Package socketproxy can make such a socket slow or broken.
package storedspectest
