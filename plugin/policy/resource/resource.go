// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package resource recognizes resources that provide RDMA. The package has no dependencies, so that programs for
// systems other than Linux can use it.
package resource

import "regexp"

var words = regexp.MustCompile(
	`(?i)rdma|infiniband|hostdev|^spidernet\.io/|(^|[^a-z])(hca|roce|efa|ib|ibp[0-9]\w*)([^a-z]|$)`)

// IsRDMA reports whether a resource provides RDMA, according to the words in the resource's name. For example, IsRDMA
// recognizes rdma/hca_shared_devices_a, vpc.amazonaws.com/efa, and nvidia.com/ibp24s0, but not example.com/coprocessor.
func IsRDMA(name string) bool { return words.MatchString(name) }
