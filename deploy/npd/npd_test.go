// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package npd_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// npdConfig is a configuration of node-problem-detector's custom plugin monitor, with the keys of its own type.
type npdConfig struct {
	Plugin       string `json:"plugin"`
	PluginConfig struct {
		InvokeInterval                          string `json:"invoke_interval"`
		Timeout                                 string `json:"timeout"`
		MaxOutputLength                         int    `json:"max_output_length"`
		Concurrency                             int    `json:"concurrency"`
		EnableMessageChangeBasedConditionUpdate bool   `json:"enable_message_change_based_condition_update"`
	} `json:"pluginConfig"`
	Source           string         `json:"source"`
	MetricsReporting bool           `json:"metricsReporting"`
	Conditions       []npdCondition `json:"conditions"`
	Rules            []npdRule      `json:"rules"`
}

type npdCondition struct {
	Type    string `json:"type"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	status  string
}

type npdRule struct {
	Type      string   `json:"type"`
	Condition string   `json:"condition"`
	Reason    string   `json:"reason"`
	Path      string   `json:"path"`
	Args      []string `json:"args"`
	Timeout   string   `json:"timeout"`
}

func TestMain(m *testing.M) { repository.Main(m) }

func readNPD(t *testing.T) (c npdConfig) {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(repository.Read(t, "deploy/npd/rdma-spec.json")))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c); err != nil {
		t.Fatal(err)
	}
	return c
}

// node-problem-detector is at no place from which tests can get it, so this checks what its configuration has to
// fulfil, as docs/custom_plugin_monitor.md and the validation of v0.8.20 have it.
func TestNPDConfig(t *testing.T) {
	c := readNPD(t)
	duration := func(text string) time.Duration {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Error(err)
		}
		return d
	}
	limit := duration(c.PluginConfig.Timeout)
	if c.Plugin != "custom" || limit*time.Duration(len(c.Rules)) > duration(c.PluginConfig.InvokeInterval) {
		t.Errorf("plugin %q, %s for each of %d rules every %s", c.Plugin, limit, len(c.Rules), c.PluginConfig.InvokeInterval)
	}
	conditions := map[string]int{}
	reasons := map[string]bool{}
	for _, condition := range c.Conditions {
		conditions[condition.Type] = 0
		reasons[condition.Reason] = true
	}
	var families []string
	for _, r := range c.Rules {
		if _, known := conditions[r.Condition]; r.Type != "permanent" || !known {
			t.Errorf("rule of type %q about %q", r.Type, r.Condition)
		}
		if conditions[r.Condition]++; conditions[r.Condition] > 1 {
			t.Errorf("two rules about %s take turns at setting and clearing it", r.Condition)
		}
		if reasons[r.Reason] {
			t.Errorf("%s is the reason of a fault and of something else", r.Reason)
		}
		reasons[r.Reason] = true
		if d := duration(r.Timeout); d > limit {
			t.Errorf("%s may take %s, longer than all may", r.Reason, d)
		}
		if r.Path != "/usr/local/bin/rdma-spec" || len(r.Args) != 5 || !slices.Equal(r.Args[:4],
			[]string{"doctor", "-o", "npd", "--only"}) {
			t.Errorf("%s calls %s %q", r.Reason, r.Path, r.Args)
			continue
		}
		families = append(families, strings.Split(r.Args[4], ",")...)
	}
	// Each family of checks is in one condition.
	listed := map[string]bool{}
	out, err := exec.Command(filepath.Join(repository.Build(t).Dir, "rdma-spec"), "doctor", "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		if cells := regexp.MustCompile(" {2,}").Split(line, 3); cells[0] != "CHECK" { // the row of headings
			listed[cells[1]] = true
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(listed)), slices.Sorted(slices.Values(families))); diff != "" {
		t.Errorf("families, -of the doctor +of the rules:\n%s", diff)
	}
}

// run runs the rules once, as node-problem-detector does, and sets their conditions.
func (c *npdConfig) run(t *testing.T, program, node string) (conditions map[string]string) {
	t.Helper()
	conditions = map[string]string{}
	for _, r := range c.Rules {
		var out bytes.Buffer
		cmd := exec.CommandContext(t.Context(), program, append(slices.Clone(r.Args), "--root", node)...)
		cmd.Stdout = &out
		var ended *exec.ExitError
		if err := cmd.Run(); err != nil && !errors.As(err, &ended) {
			t.Fatal(err)
		}
		message := strings.TrimSuffix(out.String(), "\n")
		if strings.ContainsAny(message, "\n") || message == "" || len(message) > c.PluginConfig.MaxOutputLength {
			t.Errorf("%s prints %q, want one line of %d bytes at most", r.Reason, message, c.PluginConfig.MaxOutputLength)
		}
		i := slices.IndexFunc(c.Conditions, func(condition npdCondition) bool { return condition.Type == r.Condition })
		condition := &c.Conditions[i]
		switch cmd.ProcessState.ExitCode() {
		case 0:
			condition.status, message = "False", condition.Message
		case 1:
			condition.status = "True"
		default:
			condition.status = "Unknown"
		}
		conditions[condition.Type] = condition.status + ": " + message
	}
	return conditions
}

// A fault sets its own condition and no other, and the condition clears by itself.
func TestNPDConditions(t *testing.T) {
	c, program := readNPD(t), filepath.Join(repository.Build(t).Dir, "rdma-spec")
	files := hcatest.V100Node().Files()
	files["rdma-spec/answers/runtimes.json"] = `{"answer": {"runtimes": []}}`
	files["rdma-spec/answers/listing.json"] = `{"answer": {"containers": []}}`
	files["sys/devices/pci0000:5e/0000:5e:00.0/infiniband/mlx5_0/ports/1/counters/link_downed"] = "2\n"
	node := files.Root(t)
	port := filepath.Join(node, "sys/class/infiniband/mlx5_0/ports/1")
	set := func(state, phys string) {
		for name, text := range map[string]string{"state": state, "phys_state": phys} {
			scratch.File(t, filepath.Join(port, name), text+"\n", 0o644)
		}
	}
	before := c.run(t, program, node)
	if got := before["RDMAHardwareProblem"]; got != "False: HCAs, their ports, and their PCIe links are healthy" {
		t.Errorf("on a healthy node: %s", got)
	}
	set("1: DOWN", "2: Polling")
	down := c.run(t, program, node)
	want := maps.Clone(before)
	want["RDMAHardwareProblem"] = "True: port-active: HCA mlx5_0 port 1: The port is DOWN (Polling), and the port has ..."
	if diff := cmp.Diff(want, down); diff != "" {
		t.Errorf("with a port that is down, -want +got:\n%s", diff)
	}
	set("4: ACTIVE", "5: LinkUp")
	if diff := cmp.Diff(before, c.run(t, program, node)); diff != "" {
		t.Errorf("after that, -before +after:\n%s", diff)
	}
	// What cannot be told is not a fault.
	empty := hcatest.Files{"sys/": "", "rdma-spec/answers/": ""}.Root(t)
	if got := c.run(t, program,
		empty)["RDMAContainerProblem"]; got != "Unknown: not checked: containers (for the reasons, see the results)" {
		t.Errorf("without an answer about containers: %s", got)
	}
}
