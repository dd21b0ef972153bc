// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package storedspectest has what tests of stored specs need: a server that keeps containers as containerd does, behind the same API
// on a unix socket; a proxy that makes such a socket slow, dumb or mad; and a spec as a training job's container has.
package storedspectest
