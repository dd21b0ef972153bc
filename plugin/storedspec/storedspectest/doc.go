// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package storedspectest provides a fake containerd and the spec of a training job's container, for tests of stored
// specs. The fake stores containers like containerd, and serves the same API on a Unix socket. The package does not
// depend on package storedspec. Package socketproxy can make the fake's socket slow or broken.
package storedspectest
