// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package systemd contains the plugin's systemd unit, for `rdma-spec configure plugin`.
package systemd

import _ "embed"

// Service is the text of nri-rdma.service.
//
//go:embed nri-rdma.service
var Service []byte
