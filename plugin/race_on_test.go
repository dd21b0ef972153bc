// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build race

package plugin

// raceDetector makes everything several times slower.
const raceDetector = true
