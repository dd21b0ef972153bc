// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"github.com/rdma-spec/rdma-spec/plugin/nritest"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/await"
)

// TestDashboardHasData has a real Prometheus scrape a running plugin, and checks that each query of the dashboard gets data from it. The
// queries for problems get none, because the plugin has none, and get data once it has lost its runtime.
func TestDashboardHasData(t *testing.T) {
	prometheus := prometheusProgram(t)
	runtime := nritest.New(t, "containerd", "v2.4.2")
	runtime.Start(t)
	address, config := freeAddress(t), filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(config, []byte("optIn: {namespaces: [ml]}"), 0o600); err != nil {
		t.Fatal(err)
	}
	root := hcatest.V100(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, options{
			config: config, name: "rdma", index: "90", socket: runtime.Socket, root: root, http: address,
			containerdOptions: containerdOptions{containerd: filepath.Join(root, "nobody-listens")}, budget: await.Patience,
		}, silent())
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	awaitStatus(t, address, "/readyz", http.StatusOK)
	asked := startPrometheus(t, prometheus, address)

	// One container is adjusted, and its stored spec cannot be edited. The other one is refused.
	create := func(namespace string) {
		pod := &api.PodSandbox{Id: "p", Name: "p", Namespace: namespace, Annotations: map[string]string{"rdma.noderesource.dev": "true"}}
		_, _ = runtime.Create(t.Context(), pod, &api.Container{Id: fmt.Sprintf("%064x", 1), Name: "main", PodSandboxId: "p"}) // a refusal is an error
	}
	problems := 0
	for panel, queries := range dashboard(t) {
		for _, query := range queries {
			if strings.HasSuffix(query, "== 0") {
				problems++
				if data := ask(t, asked, query); data != "[]" {
					t.Errorf("%s: %s gives %s although there is no problem", panel, query, data)
				}
				continue
			}
			await.That(t, await.Patience, fmt.Sprintf("data for %s: %s", panel, query), func() bool {
				create("ml")
				create("default")
				data := ask(t, asked, query)
				return data != "[]" && !strings.Contains(data, `"NaN"`)
			})
		}
	}
	if problems == 0 {
		t.Error("no query looks for problems")
	}
	runtime.Stop()
	await.That(t, await.Patience, "a node with a problem", func() bool { return ask(t, asked, "nri_rdma_connected == 0") != "[]" })
}

// dashboard returns the queries of each panel, with values for Grafana's variables.
func dashboard(t *testing.T) map[string][]string {
	t.Helper()
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(readText(t, "../../deploy/grafana/dashboard.json")), &board); err != nil {
		t.Fatal(err)
	}
	queries := map[string][]string{}
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			query := strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*").Replace(target.Expr)
			queries[panel.Title] = append(queries[panel.Title], query)
		}
	}
	return queries
}

// prometheusProgram returns the path of the server that make deps gets.
func prometheusProgram(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{filepath.Join(cache, "rdma-spec/bin/prometheus"), "prometheus"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("prometheus is not installed: run make deps")
	return ""
}

// startPrometheus runs a server that scrapes an address each second, until the test ends, and returns the address that it answers at.
func startPrometheus(t *testing.T, program, target string) string {
	t.Helper()
	folder, address := t.TempDir(), freeAddress(t)
	config := fmt.Sprintf("global: {scrape_interval: 1s}\nscrape_configs: [{job_name: nri-rdma, static_configs: [{targets: [%q]}]}]\n", target)
	file := filepath.Join(folder, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	server := exec.Command(program, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(folder, "data"), "--web.listen-address="+address)
	log, err := os.Create(filepath.Join(folder, "log"))
	if err != nil {
		t.Fatal(err)
	}
	server.Stdout, server.Stderr = log, log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill() // it may have ended already
		_ = server.Wait()
		if t.Failed() {
			t.Log(readText(t, log.Name()))
		}
		_ = log.Close()
	})
	awaitStatus(t, address, "/-/ready", http.StatusOK)
	return address
}

// ask returns the data of a query's answer as JSON: [] if there is none.
func ask(t *testing.T, address, query string) string {
	t.Helper()
	text := awaitStatus(t, address, "/api/v1/query?query="+url.QueryEscape(query), http.StatusOK)
	var answer struct {
		Data struct{ Result json.RawMessage }
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		t.Fatalf("%s: %v in %s", query, err, text)
	}
	return string(answer.Data.Result)
}
