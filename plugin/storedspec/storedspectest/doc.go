// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package storedspectest has what tests of stored specs need: a server that keeps containers as containerd does, behind
// the same API on a unix socket, and a spec as a training job's container has. Package socketproxy can make such a
// socket sick.
package storedspectest
