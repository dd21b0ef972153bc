// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !race

// Package race has a constant for tests that measure: whether the race detector is on.
package race

// Detector makes everything several times slower.
const Detector = false
