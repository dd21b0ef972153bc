// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !race

// Package race tells tests that measure durations whether the race detector is on.
package race

// Detector is true if the race detector is on. The detector makes programs several times slower.
const Detector = false
