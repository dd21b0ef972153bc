// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/part"
)

// parts assigns each test to a node. `make test` runs main. `make test-all` and `make nightly` run the others, except
// critest, busy, and pods, which have their own targets.
var parts = part.Table{
	{Part: "main", Node: "main", Tests: []func(*testing.T){
		TestDeviceSignal, TestAnnotationInjects, TestNonRoot, TestNoGrant, TestStoredSpecs, TestSize, TestIPCLockForEveryUser,
		TestIPCLockRequested, TestIPCLockIsWhatCounts, TestFiniteMemlockHolds, TestIPCLockStays, TestRefusals, TestValidator,
		TestRepairLoop,
	}},
	// Tests that must pass on each runtime.
	{Part: "smoke", Node: "core", Again: true, Tests: []func(*testing.T){
		TestDeviceSignal, TestAnnotationInjects, TestRefusals, TestNonRoot, TestIPCLockForEveryUser, TestValidator,
	}},
	{Part: "oldest", Node: "core", Again: true, Tests: []func(*testing.T){TestGenerate}},
	{Part: "crun", Node: "core", Again: true, Tests: []func(*testing.T){TestCDI}},

	// The plugin and containerd end repeatedly.
	{Part: "faults", Node: "main", Tests: []func(*testing.T){
		TestContainerdRestartsAtBoot, TestContainerdRestarts, TestPluginKilled, TestPluginKilledUnderPodsThatInsist,
		TestPluginKilledBesideAValidator,
	}},
	// Rare situations, and long waits.
	{Part: "edges", Node: "main", Tests: []func(*testing.T){
		TestEditCost, TestGenerate, TestGenerateWhereNothingCanBeWritten, TestConnectionManagerComesLate, TestHotplug,
		TestLaunchedByContainerd, TestNetdevOfAnotherNamespace, TestRegistersAfterALongStop, TestRuntimeThatMayNotRaiseLimits,
		TestPluginStopped, TestPluginThatCannotWatch, TestPluginThatMayNotConnect, TestPluginOnAReadOnlyRoot,
		TestTwoPlugins, TestContainerdCountsCalls,
	}},
	// rdma-spec on a node and in a container.
	{Part: "tool", Node: "main", Tests: []func(*testing.T){
		TestDoctor, TestDoctorWithoutPlugin, TestCollect, TestStatusAndRepairWithoutRights, TestUse, TestRepair, TestCDI,
		TestCDINameOfAnotherPlugin, TestCDINameOfNVIDIAsPlugin, TestDeviceOfAnInjector, TestVerifyEphemeral, TestVerifyOwnNetwork,
	}},
	{Part: "tool", Node: "core", Tests: []func(*testing.T){TestVerify, TestPodman, TestDocker}},
	{Part: "dropins", Node: "core", Tests: []func(*testing.T){TestDropIns}},
	{Part: "configure", Node: "core", Tests: []func(*testing.T){TestConfigure}},
	{Part: "crio", Node: "core", Tests: []func(*testing.T){TestCRIO}},
	{Part: "pair", Node: "main", Tests: []func(*testing.T){TestBetweenNodes}},
	{Part: "apparmor", Node: "main", Tests: []func(*testing.T){TestAppArmor}},

	// With a kubelet, and with an API server.
	{Part: "kubernetes", Node: "all", Tests: []func(*testing.T){
		TestKubelet, TestKubeletRestarts, TestClusterRequired, TestClusterAdmission, TestClusterRestricted,
		TestClusterDevicePluginWaits, TestClusterRequest,
	}},
	{Part: "shared", Node: "all", Tests: []func(*testing.T){TestKubeletSharedDevicePlugin}},
	{Part: "daemonset", Node: "all", Release: true, Tests: []func(*testing.T){TestClusterDaemonSet}},
	{Part: "policy", Node: "all", Release: true, Tests: []func(*testing.T){TestClusterPolicy}},
	{Part: "restricted", Node: "all", Release: true, Tests: []func(*testing.T){TestClusterRestrictedChart}},
	{Part: "guides", Node: "all", Release: true, Tests: []func(*testing.T){TestClusterGuides, TestClusterWhy}},
	{Part: "dra", Node: "all", Tests: []func(*testing.T){TestClusterDRA}},

	{Part: "critest", Node: "critest", Tests: []func(*testing.T){TestCritest}},
	{Part: "busy", Node: "main", Tests: []func(*testing.T){TestBusyNode}},
	{Part: "pods", Node: "main", Tests: []func(*testing.T){TestPodsPerSecond}},
}
