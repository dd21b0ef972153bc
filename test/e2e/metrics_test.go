// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

// metricsAddress is the address at which a test's plugin can serve its metrics.
const metricsAddress = "127.0.0.1:9797"

// metrics returns the plugin's metrics.
func metrics() (string, error) { return metricsOf(metricsAddress) }

// metricsOf returns the metrics that are served at an address.
func metricsOf(address string) (string, error) {
	answer, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }() // it was read
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = errors.New(answer.Status)
	}
	return string(text), err
}

// expectMetric checks that the plugin's metrics have a line.
func expectMetric(t *testing.T, line string) {
	t.Helper()
	if text, err := metrics(); err != nil || !strings.Contains(text, "\n"+line+"\n") {
		t.Errorf("%v, metrics without %s:\n%s", err, line, text)
	}
}
