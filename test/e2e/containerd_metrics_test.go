// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"io"
	"net/http"
	"regexp"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/testing/loopback"
)

// containerd counts the calls of the plugin in the metrics that the alerts use, and counts a refusal as an unknown
// error.
func TestContainerdCountsCalls(t *testing.T) {
	address := loopback.Address()
	restartWith(t, func(o *containerd.Options) { o.Metrics = address })
	startPlugin(t, listed)
	annotations := map[string]string{"rdma.noderesource.dev": "true"}
	may := runPod(t, containerd.Pod{Namespace: "ml-a", Name: "counted", Annotations: annotations})
	if _, err := may.Create(within(t, patience), containerd.Container{Name: "main"}); err != nil {
		t.Fatal(err)
	}
	mayNot := runPod(t, containerd.Pod{Namespace: "guest", Name: "refused", Annotations: annotations})
	if _, err := mayNot.Create(within(t, patience), containerd.Container{Name: "main"}); err == nil {
		t.Fatal("the container was created")
	}
	answer, err := http.Get("http://" + address + "/v1/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }() // it was read
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`(?m)^containerd_nri_plugin_invocations_total{error="",operation="CreateContainer",plugin="[0-9]+-rdma",status="success"} 1$`,
		`(?m)^containerd_nri_plugin_invocations_total{error="unknown",operation="CreateContainer",plugin="[0-9]+-rdma",status="error"} 1$`,
		`(?m)^containerd_nri_plugin_latency_seconds_count{operation="CreateContainer",plugin="[0-9]+-rdma"} 2$`,
		`(?m)^containerd_nri_active_plugins_total [1-9]`,
		`(?m)^containerd_cri_container_create_seconds_count{runtime=".*"} 1$`,
	} {
		if !regexp.MustCompile(want).Match(text) {
			t.Errorf("no metric is %s", want)
		}
	}
	if t.Failed() {
		for _, line := range regexp.MustCompile(`(?m)^containerd_(nri|cri_container_create).*$`).FindAllString(string(text), -1) {
			t.Log(line)
		}
	}
}
