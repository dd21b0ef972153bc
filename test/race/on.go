// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build race

// Package race tells tests that measure whether the race detector is at work.
package race

// Detector makes everything several times slower.
const Detector = true
