// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package systemd

import "embed"

// CDI contains the files that keep a node's CDI file up to date: rdma-spec-cdi.service, rdma-spec-cdi.timer, and the
// udev rule 90-rdma-spec-cdi.rules.
//
//go:embed rdma-spec-cdi.service rdma-spec-cdi.timer 90-rdma-spec-cdi.rules
var CDI embed.FS
