// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package resource_test

import (
	"testing"

	"github.com/rdma-spec/rdma-spec/plugin/policy/resource"
)

// Resources that give RDMA are known by the words of their names, as device plugins and clouds call them.
func TestIsRDMA(t *testing.T) {
	for name, want := range map[string]bool{
		"rdma/hca_shared_devices_a": true, "rdma/ib": true, "nvidia.com/sriov_rdma": true, "nvidia.com/hostdev": true,
		"nvidia.com/ibp24s0": true, "vpc.amazonaws.com/efa": true, "aliyun/erdma": true, "openshift.io/mlnxrdma": true,
		"spidernet.io/shared_cx5_gpu1": true, "example.com/RoCE": true, "example.com/coprocessor": false,
		"example.com/healthcare-gpu": false, "example.com/library": false, "nvidia.com/gpu": false, "cpu": false,
	} {
		if resource.IsRDMA(name) != want {
			t.Errorf("%s: not %v", name, want)
		}
	}
}
