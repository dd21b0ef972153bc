// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/loopback"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/prometheus"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// What the containers of the pods serve, by their names, or by their ports where they have one.
var served = map[string]string{
	"nri-rdma": `nri_rdma_build_info{version="devel"} 1
nri_rdma_connected 1
nri_rdma_hca_age_seconds{hca="mlx5_0"} 1
nri_rdma_hca_port_active{hca="mlx5_0",port="1",link_layer="InfiniBand"} 1
`,
	"validator": "nri_rdma_build_info{version=\"devel\"} 1\nnri_rdma_connected 1\n",
	"repair":    "rdma_spec_repair_containers{memlock=\"below\"} 0\n",
	"doctor": `rdma_spec_doctor_findings{check="port-active",status="wrong"} 0
rdma_spec_container_registered_bytes{container="main",namespace="tenant-a",pod="train"} 4.4e+10
rdma_spec_container_pinned_bytes{container="main",namespace="tenant-a",pod="train"} 4.4e+10
rdma_spec_container_memlock_limit_bytes{container="main",namespace="tenant-a",pod="train"} 6.8e+10
rdma_spec_container_registered_bytes{container="main",namespace="tenant-b",pod="idle"} 0
rdma_spec_container_pinned_bytes{container="main",namespace="tenant-b",pod="idle"} 0
rdma_spec_container_memlock_limit_bytes{container="main",namespace="tenant-b",pod="idle"} 6.8e+10
`,
}

// monitoredNodes are nodes with a pod each.
var monitoredNodes = []string{"node-1", "node-2"}

// A Prometheus that scrapes what the chart's monitor and the job of scrape.yaml name has each tenant's containers, each
// node's plugin, and no label that it had to rename. It can evaluate all rules.
func TestPodMonitorAndScrapeJob(t *testing.T) {
	const all = "validator: {enabled: true}, repair: {enabled: true}, doctor: {enabled: true}, "
	own := loopback.Address()
	port := own[strings.LastIndex(own, ":"):]
	for _, test := range []struct {
		name, values string
		job          bool // by scrape.yaml
		containers   []string
	}{
		{"by the PodMonitor", all + "networkPolicy: {namespaces: [monitoring]}, podMonitor: {enabled: true}, " +
			"alerts: {enabled: true, registeredNothing: true}", false, []string{"doctor", "nri-rdma", "repair", "validator"}},
		{"by the job", all + "alerts: {enabled: true}", true, []string{"doctor", "nri-rdma", "repair", "validator"}},
		{"in the nodes' network", "hostNetwork: true, hostNetworkMetrics: '" + port + "', podMonitor: {enabled: true}, " +
			"validator: {enabled: true}, repair: {enabled: true}, alerts: {enabled: true}", false, []string{"nri-rdma"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			rendered := render(t, "{"+test.values+"}")
			set := daemonSet(t, rendered)
			var pods []Values
			for i, node := range monitoredNodes {
				pods = append(pods, podTargets(t, set.Spec.Template, node, fmt.Sprintf("127.0.0.%d", i+2), port)...)
			}
			jobs := monitorJobs(t, rendered["podmonitor.yaml"], pods)
			if test.job {
				jobs = scrapeJob(t, pods)
			}
			p := startPrometheus(t, jobs, rendered["prometheusrule.yaml"])
			for _, node := range monitoredNodes {
				for _, container := range test.containers {
					p.awaitOne(t, fmt.Sprintf(`up{instance=%q, container=%q, namespace="rdma-spec"} == 1`, node, container))
				}
			}
			p.awaitOne(t, `count(count by (instance) (nri_rdma_build_info{namespace="rdma-spec", pod!=""})) == 2`)
			p.expectSound(t)
			if slices.Contains(test.containers, "doctor") {
				p.expectTenants(t)
			}
		})
	}
}

// podTargets returns what Prometheus' service discovery finds of a pod: a target for each port of its containers, and one
// for each container without any. They are served until the test ends.
func podTargets(t *testing.T, pod corev1.PodTemplateSpec, node, ip, hostPort string) (targets []Values) {
	t.Helper()
	for _, c := range pod.Spec.Containers {
		address := net.JoinHostPort(ip, "0")
		if pod.Spec.HostNetwork {
			address = ip + hostPort
		}
		target := Values{
			"__meta_kubernetes_namespace": namespace, "__meta_kubernetes_pod_name": "nri-rdma-" + node,
			"__meta_kubernetes_pod_node_name": node, "__meta_kubernetes_pod_ip": ip, "__meta_kubernetes_pod_phase": "Running",
			"__meta_kubernetes_pod_container_name": c.Name, "__address__": ip,
		}
		for key, value := range pod.Labels {
			target["__meta_kubernetes_pod_label_"+sanitized(key)] = value
		}
		if pod.Spec.HostNetwork && c.Name != "nri-rdma" {
			targets = append(targets, target)
			continue
		}
		listener, err := net.Listen("tcp", address)
		must.Succeed(t, err)
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, served[c.Name]) // Prometheus asks again
		})}
		go func() { _ = server.Serve(listener) }() // until it is closed
		t.Cleanup(func() { _ = server.Close() })
		if len(c.Ports) > 0 {
			target["__address__"] = listener.Addr().String()
			target["__meta_kubernetes_pod_container_port_name"] = c.Ports[0].Name
		}
		targets = append(targets, target)
	}
	return targets
}

func sanitized(label string) string {
	return regexp.MustCompile(`[^a-zA-Z0-9_]`).ReplaceAllString(label, "_")
}

// monitorJobs makes of a PodMonitor what the Prometheus operator makes of it.
func monitorJobs(t *testing.T, monitor string, targets []Values) (jobs []any) {
	t.Helper()
	var m struct {
		Metadata struct{ Name, Namespace string }
		Spec     struct {
			Selector  struct{ MatchLabels map[string]string }
			Endpoints []struct {
				Port        string
				HonorLabels bool
				Relabelings []struct {
					Action, Regex, TargetLabel, Replacement string
					SourceLabels                            []string
				}
			} `json:"podMetricsEndpoints"`
		}
	}
	must.Succeed(t, yaml.Unmarshal([]byte(monitor), &m))
	for i, endpoint := range m.Spec.Endpoints {
		rules := []any{}
		keep := func(source, value string) {
			rules = append(rules, Values{"action": "keep", "source_labels": []string{source}, "regex": value})
		}
		for key, value := range m.Spec.Selector.MatchLabels {
			keep("__meta_kubernetes_pod_label_"+sanitized(key), value)
		}
		if endpoint.Port != "" {
			keep("__meta_kubernetes_pod_container_port_name", endpoint.Port)
		}
		for target, source := range map[string]string{"namespace": "namespace", "container": "pod_container_name", "pod": "pod_name"} {
			rules = append(rules, Values{"source_labels": []string{"__meta_kubernetes_" + source}, "target_label": target})
		}
		for _, r := range endpoint.Relabelings {
			rule := Values{"source_labels": r.SourceLabels}
			for key, value := range map[string]string{"action": r.Action, "regex": r.Regex, "target_label": r.TargetLabel, "replacement": r.Replacement} {
				if value != "" {
					rule[key] = value
				}
			}
			rules = append(rules, rule)
		}
		jobs = append(jobs, Values{
			"job_name":     fmt.Sprintf("podMonitor/%s/%s/%d", m.Metadata.Namespace, m.Metadata.Name, i),
			"honor_labels": endpoint.HonorLabels, "relabel_configs": rules, "static_configs": static(targets),
		})
	}
	return jobs
}

// scrapeJob is the job of scrape.yaml, with targets in place of a cluster's.
func scrapeJob(t *testing.T, targets []Values) []any {
	t.Helper()
	var config struct {
		Jobs []any `json:"scrape_configs"`
	}
	must.Succeed(t, yaml.Unmarshal([]byte(read(t, "deploy/prometheus/scrape.yaml")), &config))
	for _, job := range config.Jobs {
		delete(job.(Values), "kubernetes_sd_configs")
		job.(Values)["static_configs"] = static(targets)
	}
	return config.Jobs
}

// static are targets whose labels are those of a service discovery.
func static(targets []Values) (all []any) {
	for _, target := range targets {
		all = append(all, Values{"targets": []any{target["__address__"]}, "labels": target})
	}
	return all
}

// prometheusServer is the address of a server.
type prometheusServer string

// startPrometheus runs a server with scrape jobs, and with the rules of PrometheusRule objects, until the test ends.
func startPrometheus(t *testing.T, jobs []any, rules string) prometheusServer {
	t.Helper()
	dir := scratch.Dir(t)
	var files []string
	for i, object := range between.Split(rules, -1) {
		text, err := yaml.Marshal(parse(t, object)["spec"])
		must.Succeed(t, err)
		files = append(files, filepath.Join(dir, fmt.Sprintf("rules-%d.yaml", i)))
		scratch.File(t, files[i], string(text), 0o600)
	}
	config, err := yaml.Marshal(Values{
		"global":     Values{"scrape_interval": "1s", "evaluation_interval": "1s"},
		"rule_files": files, "scrape_configs": jobs,
	})
	must.Succeed(t, err)
	return prometheusServer(prometheus.Start(t, string(config)))
}

// get asks the API, and decodes what it answers with.
func (p prometheusServer) get(t *testing.T, path string, values url.Values, into any) {
	t.Helper()
	answer, err := http.Get("http://" + string(p) + "/api/v1/" + path + "?" + values.Encode())
	must.Succeed(t, err)
	defer func() { _ = answer.Body.Close() }() // it was read
	text, err := io.ReadAll(answer.Body)
	must.Succeed(t, err)
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s", path, values, text)
	}
	must.Succeed(t, json.Unmarshal(text, &struct{ Data any }{into}))
}

// query returns the labels of a query's results.
func (p prometheusServer) query(t *testing.T, expr string) (labels []map[string]string) {
	t.Helper()
	var data struct {
		Result []struct{ Metric map[string]string }
	}
	p.get(t, "query", url.Values{"query": {expr}}, &data)
	for _, result := range data.Result {
		labels = append(labels, result.Metric)
	}
	return labels
}

func (p prometheusServer) awaitOne(t *testing.T, expr string) {
	t.Helper()
	await.That(t, await.Timeout, "one result of "+expr, func() bool { return len(p.query(t, expr)) == 1 })
}

// expectSound expects that no scrape had labels of its own that Prometheus renamed, and that each rule can be evaluated.
func (p prometheusServer) expectSound(t *testing.T) {
	t.Helper()
	for _, labels := range p.query(t, `{__name__=~"nri_rdma.*|rdma_spec.*"}`) {
		for name := range labels {
			if strings.HasPrefix(name, "exported_") {
				t.Errorf("Prometheus has renamed a label: %v", labels)
			}
		}
	}
	type rule struct{ Name, Health, LastError string }
	var data struct{ Groups []struct{ Rules []rule } }
	var wrong []rule
	await.That(t, await.Timeout, "Prometheus has evaluated all rules", func() bool {
		wrong = nil
		p.get(t, "rules", nil, &data)
		evaluated := len(data.Groups) > 0
		for _, group := range data.Groups {
			for _, r := range group.Rules {
				evaluated = evaluated && r.Health != "unknown"
				if r.Health == "err" {
					wrong = append(wrong, r)
				}
			}
		}
		return evaluated
	})
	if len(wrong) > 0 {
		t.Errorf("rules that cannot be evaluated: %+v", wrong)
	}
	if firing := p.query(t, `ALERTS{alertstate="firing"}`); len(firing) > 0 {
		t.Errorf("alerts fire: %v", firing)
	}
}

// expectTenants expects that the dashboard, and the alert about containers that use no RDMA, tell tenants apart.
func (p prometheusServer) expectTenants(t *testing.T) {
	t.Helper()
	var board struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	must.Succeed(t, json.Unmarshal([]byte(read(t, dashboard)), &board))
	asks := map[string][]string{
		read(t, alertsUse)[strings.Index(read(t, alertsUse), "expr: ")+len("expr: "):]: {"tenant-b/idle"},
	}
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			expr := strings.NewReplacer("$instance", ".*", "$cluster", ".*").Replace(target.Expr)
			switch {
			case !strings.Contains(expr, "rdma_spec_container_"):
			case strings.HasSuffix(expr, "== 0"):
				asks[expr] = []string{"tenant-b/idle"}
			default:
				asks[expr] = []string{"tenant-a/train", "tenant-b/idle"}
			}
		}
	}
	if len(asks) < 4 {
		t.Fatalf("only %d queries are about containers", len(asks))
	}
	for expr, want := range asks {
		expr, _, _ = strings.Cut(expr, "\n")
		var got []string
		for _, labels := range p.query(t, expr) {
			got = append(got, labels["namespace"]+"/"+labels["pod"])
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, slices.Compact(got)); diff != "" {
			t.Errorf("%s: -want +got:\n%s", expr, diff)
		}
	}
}
