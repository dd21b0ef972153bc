// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package resource knows which resources of pods give RDMA. It links nothing, so that programs for other systems than
// Linux can use it.
package resource

import "regexp"

var words = regexp.MustCompile(
	`(?i)rdma|infiniband|hostdev|^spidernet\.io/|(^|[^a-z])(hca|roce|efa|ib|ibp[0-9]\w*)([^a-z]|$)`)

// IsRDMA reports whether a resource of pods gives RDMA, by the words of its name: rdma/hca_shared_devices_a,
// vpc.amazonaws.com/efa, nvidia.com/ibp24s0; not example.com/coprocessor.
func IsRDMA(name string) bool { return words.MatchString(name) }
