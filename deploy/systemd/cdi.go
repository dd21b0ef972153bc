// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package systemd

import "embed"

// CDI has the units that keep a node's CDI file right: rdma-spec-cdi.service, rdma-spec-cdi.path and
// rdma-spec-cdi.timer.
//
//go:embed rdma-spec-cdi.service rdma-spec-cdi.path rdma-spec-cdi.timer
var CDI embed.FS
