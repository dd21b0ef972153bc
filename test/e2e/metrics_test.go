// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"io"
	"net/http"
)

// metricsAddress is where a test's plugin serves its metrics, if it does.
const metricsAddress = "127.0.0.1:9797"

// metrics returns the plugin's metrics.
func metrics() (string, error) {
	answer, err := http.Get("http://" + metricsAddress + "/metrics")
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }() // it was read
	text, err := io.ReadAll(answer.Body)
	return string(text), err
}
