// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package repair finds the containers of a node that run below policy, because they were created without the plugin or under another
// configuration: it keeps a record of each container, compares, raises and reports. It knows nothing of NRI and decides nothing: who
// should have what is known to package policy.
package repair
