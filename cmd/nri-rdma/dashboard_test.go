// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/rdma-spec/rdma-spec/plugin/nritest"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/loopback"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/prometheus"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// Each query of the dashboard gets data from a Prometheus, those for problems once the plugin has lost its runtime.
func TestDashboardHasData(t *testing.T) {
	prometheus.Program(t, "prometheus")
	runtime := nritest.New(t, "containerd", "v2.4.2")
	runtime.Start(t)
	address, config := loopback.Address(), filepath.Join(scratch.Dir(t), "config.yaml")
	scratch.File(t, config, "optIn: {namespaces: [ml]}", 0o600)
	root := hcatest.V100(t)
	running(t, options{config: config, socket: runtime.Socket, root: root, http: address,
		containerd: filepath.Join(root, "nobody-listens"), budget: 300 * time.Millisecond})
	awaitStatus(t, address, "/readyz", http.StatusOK)
	tool := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, usedMemory) // Prometheus asks again
	}))
	t.Cleanup(tool.Close)
	asked := prometheus.Start(t, fmt.Sprintf("global: {scrape_interval: 1s}\nscrape_configs: [{job_name: nri-rdma, "+
		"static_configs: [{targets: ['%s', '%s'], labels: {instance: node-1}}]}]\n", address,
		strings.TrimPrefix(tool.URL, "http://")))

	// One container is adjusted, and its stored spec cannot be edited. The other one is refused.
	create := func(namespace string) {
		pod := &api.PodSandbox{Id: "p", Name: "p", Namespace: namespace,
			Annotations: map[string]string{"rdma.noderesource.dev": "true"}}
		// a refusal is an error
		_, _ = runtime.Create(t.Context(), pod, &api.Container{Id: fmt.Sprintf("%064x", 1), Name: "main", PodSandboxId: "p"})
	}
	problems, began, panels := 0, time.Now(), dashboard(t)
	for _, panel := range panels {
		for _, target := range panel.Targets {
			if strings.HasSuffix(target.Expr, "== 0") {
				problems++
				if data := ask(t, asked, target.Expr); data != "[]" {
					t.Errorf("%s: %s gives %s although there is no problem", panel.Title, target.Expr, data)
				}
				continue
			}
			await.That(t, await.Timeout, fmt.Sprintf("data for %s: %s", panel.Title, target.Expr), func() bool {
				create("ml")
				create("default")
				data := ask(t, asked, target.Expr)
				return data != "[]" && !strings.Contains(data, `"NaN"`)
			})
		}
	}
	if problems == 0 {
		t.Error("no query looks for problems")
	}
	if *drawing != "" {
		for i := 0; time.Since(began) < drawn; i++ { // something to see
			create([]string{"ml", "ml", "ml", "default"}[i%4])
			time.Sleep(time.Duration(i%7) * 100 * time.Millisecond)
		}
		drawDashboard(t, *drawing, asked, began, panels)
	}
	runtime.Stop()
	await.That(t, await.Timeout, "a node with a problem",
		func() bool { return ask(t, asked, "nri_rdma_connected == 0") != "[]" })
}

// usedMemory is what rdma-spec doctor writes about containers, and rdma-spec repair.
const usedMemory = `rdma_spec_container_registered_bytes{container="main",namespace="ml",pod="train-0"} 4.4e+10
rdma_spec_container_pinned_bytes{container="main",namespace="ml",pod="train-0"} 4.4e+10
rdma_spec_container_memlock_limit_bytes{container="main",namespace="ml",pod="train-0"} 6.8719476736e+10
rdma_spec_repair_containers{memlock="below"} 1
rdma_spec_repair_containers{memlock="sufficient"} 3
`

// panel is one of the dashboard's.
type panel struct {
	Title, Type string
	GridPos     struct{ X, Y, W, H int }
	Targets     []struct{ Expr, LegendFormat string }
}

// dashboard returns the panels, whose queries have values for Grafana's variables.
func dashboard(t *testing.T) []panel {
	t.Helper()
	var board struct{ Panels []panel }
	must.Succeed(t, json.Unmarshal([]byte(scratch.Read(t, "../../deploy/helm/nri-rdma/files/dashboard.json")), &board))
	for _, p := range board.Panels {
		for i := range p.Targets {
			variables := strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*", "$cluster", ".*", "$job", ".*")
			p.Targets[i].Expr = variables.Replace(p.Targets[i].Expr)
		}
	}
	return board.Panels
}

// ask returns the data of a query's answer as JSON: [] if there is none.
func ask(t *testing.T, address, query string) string {
	t.Helper()
	return string(request(t, address, "query", url.Values{"query": {query}}))
}

// request returns the result that Prometheus' API answers with.
func request(t *testing.T, address, path string, values url.Values) json.RawMessage {
	t.Helper()
	text := awaitStatus(t, address, "/api/v1/"+path+"?"+values.Encode(), http.StatusOK)
	var answer struct {
		Data struct{ Result json.RawMessage }
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		t.Fatalf("%s: %v in %s", values, err, text)
	}
	return answer.Data.Result
}
