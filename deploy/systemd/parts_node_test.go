// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package systemd_test

import (
	"flag"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/part"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

// parts says on which node each test of the services runs. `make test` runs restart and then service, which leaves a pod
// behind, and `make test-all` the others.
var parts = part.Table{
	{Part: "service", Node: "main", Tests: []func(*testing.T){TestNodeCDI, TestNodeService}},
	{Part: "restart", Node: "main", Tests: []func(*testing.T){TestNodeServiceUpgrade}},
	// Beside the other runtimes.
	{Part: "upgrade", Node: "core", Tests: []func(*testing.T){TestNodeServiceUpgradeBesideOthers}},
	// Both, with -upgrades, for hours.
	{Part: "churn", Node: "core", Again: true, Tests: []func(*testing.T){TestNodeServiceUpgradeBesideOthers, TestNodeServiceUpgrade}},
	{Part: "package", Node: "core", Release: true, Tests: []func(*testing.T){TestNodePackage}},
}

func TestMain(m *testing.M) {
	flag.Parse()
	parts.Choose()
	repository.Main(m)
}
