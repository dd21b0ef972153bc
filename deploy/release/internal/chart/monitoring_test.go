// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/docs"
	"github.com/rdma-spec/rdma-spec/test/testing/prometheus"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// The files that Prometheus and Grafana read, and the tests of the alerts.
const (
	alerts     = Dir + "/files/alerts.yaml"
	alertsUse  = Dir + "/files/alerts-use.yaml"
	counters   = "deploy/prometheus/node_exporter.yaml"
	alertsTest = "deploy/prometheus/alerts_test.yaml"
	dashboard  = Dir + "/files/dashboard.json"
)

func read(t *testing.T, file string) string {
	t.Helper()
	return scratch.Read(t, filepath.Join(root, file))
}

// TestAlertsAndDashboard_metricsExist checks that the alerts and the dashboard ask for metrics that docs/metrics.md lists, which a test
// compares with what the program registers, or docs/doctor.md.
func TestAlertsAndDashboard_metricsExist(t *testing.T) {
	var known []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(nri_rdma_[a-z_]+|rdma_spec_[a-z_]+)[`{]").FindAllStringSubmatch(
		read(t, "docs/metrics.md")+read(t, "docs/doctor.md"), -1) {
		known = append(known, row[1])
	}
	for file, least := range map[string]int{alerts: 5, alertsUse: 2, alertsTest: 5, dashboard: 5} {
		asked := regexp.MustCompile(`(nri_rdma|rdma_spec)_[a-z_]+`).FindAllString(read(t, file), -1)
		if len(asked) < least {
			t.Errorf("%s asks for %v, want more", file, asked)
		}
		for _, name := range asked {
			if !slices.Contains(known, name) && !slices.Contains(known, strings.TrimSuffix(name, "_bucket")) {
				t.Errorf("%s asks for %s, which does not exist", file, name)
			}
		}
	}
}

// TestScrapeJob checks that the job for Prometheus finds the ports of the plain manifest. Debian's promtool knows no
// Kubernetes.
func TestScrapeJob(t *testing.T) {
	job := read(t, "deploy/prometheus/scrape.yaml")
	var scrape struct {
		Jobs []struct {
			Relabel []struct {
				Regex, Action string
				Source        []string `json:"source_labels"`
				Target        string   `json:"target_label"`
			} `json:"relabel_configs"`
		} `json:"scrape_configs"`
	}
	if err := yaml.Unmarshal([]byte(job), &scrape); err != nil {
		t.Fatal(err)
	}
	keep := scrape.Jobs[0].Relabel[0]
	kept := regexp.MustCompile("^(?:" + keep.Regex + ")$")
	var ports []string
	for _, file := range []string{"base", "components/validator", "components/repair"} {
		for _, port := range regexp.MustCompile(`(?:- name: (\w+)\n +containerPort:|- containerPort: \d+\n +name: (\w+))`).FindAllStringSubmatch(read(t, "deploy/kustomize/"+file+"/daemonset.yaml"), -1) {
			ports = append(ports, port[1]+port[2])
		}
	}
	if keep.Action != "keep" || len(ports) != 3 || slices.ContainsFunc(ports,
		func(port string) bool { return !kept.MatchString(port) }) {
		t.Errorf("of the ports %q, the job takes those that match %s", ports, keep.Regex)
	}
	// Plugin and validator of a pod, and the pod that takes over from it, are one node, and not one series.
	series := map[string]bool{}
	for _, target := range []Values{
		{"pod_name": "old", "pod_container_name": "nri-rdma"}, {"pod_name": "old", "pod_container_name": "validator"},
		{"pod_name": "new", "pod_container_name": "nri-rdma"},
	} {
		maps.Copy(target, Values{"pod_node_name": "a", "namespace": namespace})
		labels := Values{}
		for _, rule := range scrape.Jobs[0].Relabel[1:] {
			labels[rule.Target] = target[strings.TrimPrefix(rule.Source[0], "__meta_kubernetes_")]
		}
		series[fmt.Sprint(labels)] = true
		if labels["instance"] != "a" || labels["namespace"] != namespace {
			t.Errorf("a target of node a has the labels %v", labels)
		}
	}
	if len(series) != 3 {
		t.Errorf("three targets of a node have the labels %v", slices.Collect(maps.Keys(series)))
	}
	if namespace := "names: [rdma-spec]"; !strings.Contains(job, namespace) ||
		!strings.Contains(read(t, "deploy/"+baseFile), "\n  namespace: rdma-spec\n") {
		t.Errorf("the job and the manifest are not for the same namespace")
	}
}

// TestAlerts runs promtool's unit tests of the alerts, and checks that each alert fires in one of them.
func TestAlerts(t *testing.T) {
	for _, args := range [][]string{{"check", "rules", alerts, alertsUse, counters}, {"test", "rules", alertsTest}} {
		cmd := exec.Command(prometheus.Program(t, "promtool"), args...)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
	tests := read(t, alertsTest)
	for _, alert := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(read(t, alerts)+read(t, alertsUse)+read(t, counters), -1) {
		fires := regexp.MustCompile(`alertname: ` + alert[1] + `\n +exp_alerts:\n +- exp_labels|alertname="` + alert[1] + `"`)
		if !fires.MatchString(tests) {
			t.Errorf("no test has %s fire", alert[1])
		}
	}
}

// TestAlertKnowsTheResources checks that NRIRDMANotCalled is about nodes with one of admission.resources, by the names
// that kube-state-metrics gives them.
func TestAlertKnowsTheResources(t *testing.T) {
	var values struct {
		Admission struct {
			Resources []string `json:"resources"`
		} `json:"admission"`
	}
	if err := yaml.Unmarshal([]byte(read(t, Dir+"/values.yaml")), &values); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, glob := range values.Admission.Resources {
		names = append(names, strings.ReplaceAll(regexp.MustCompile(`[^a-z*]`).ReplaceAllString(glob, "_"), "*", ".+"))
	}
	if want := `{resource=~"` + strings.Join(names, "|") + `"}`; !strings.Contains(read(t, alerts), want) {
		t.Errorf("%s does not have %s", alerts, want)
	}
}

// TestAlerts_runbooks checks that each alert has a runbook, in the documentation that alerts.runbooks stands for. The tests of
// docs look at where addresses lead.
func TestAlerts_runbooks(t *testing.T) {
	for _, file := range []string{alerts, alertsUse, counters} {
		text := read(t, file)
		if strings.Count(text, "- alert: ") != strings.Count(text, "\n          runbook_url: "+docs.Site) {
			t.Errorf("%s has alerts without a runbook", file)
		}
	}
	if begins := "  runbooks: " + strings.TrimSuffix(docs.Site, "/") + "\n"; !strings.Contains(read(t, Dir+"/values.yaml"), begins) {
		t.Errorf("the values have no line %q", begins)
	}
}

// TestDashboardQueries has promtool read each query of the dashboard, with values for Grafana's variables.
func TestDashboardQueries(t *testing.T) {
	var board struct {
		Panels []struct {
			Type, Title, Description string
			Targets                  []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, dashboard)), &board); err != nil {
		t.Fatal(err)
	}
	type rule struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	var rules []rule
	for i, panel := range board.Panels {
		if panel.Type == "row" {
			continue
		}
		if panel.Title == "" || panel.Description == "" || len(panel.Targets) == 0 {
			t.Errorf("panel %d has no title, no description or no query", i)
		}
		for j, target := range panel.Targets {
			expr := strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*", "$cluster", ".*", "$job", ".*").Replace(target.Expr)
			rules = append(rules, rule{fmt.Sprintf("panel_%d_%d", i, j), expr})
			chosen := `{cluster=~"$cluster", job=~"$job", instance=~"$instance"`
			if strings.Contains(target.Expr, "rdma_spec_") { // of another job, such as node_exporter's
				chosen = `{cluster=~"$cluster", instance=~"$instance"`
			}
			if strings.HasPrefix(panel.Description, "Nodes ") && !strings.Contains(target.Expr, "by (cluster, instance") {
				t.Errorf("panel %q counts processes: a node has a plugin, a validator, and two of each during an update", panel.Title)
			}
			if !strings.Contains(target.Expr, chosen) {
				t.Errorf("panel %q does not ask for the cluster, the job, and the node that are chosen: %s", panel.Title, target.Expr)
			}
		}
	}
	if len(rules) < 10 {
		t.Fatalf("%d queries, want more", len(rules))
	}
	text, err := yaml.Marshal(Values{"groups": []any{Values{"name": "dashboard", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(scratch.Dir(t), "rules.yaml")
	scratch.File(t, file, string(text), 0o644)
	if out, err := exec.Command(prometheus.Program(t, "promtool"), "check", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}
