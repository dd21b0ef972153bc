// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/internal/clitest"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

const examples = "../../deploy/examples"

// promise is what a comment of an example says that explain says: `# explain: CONTAINER: VERDICT`. Where several
// containers have the name, the object stands before it, and where that does not suffice, the path of its pod template.
type promise struct{ container, verdict string }

// promises are the comments of an example.
type promises struct {
	config, hca, assume string
	all                 []promise
}

var (
	settingLine = regexp.MustCompile(`^\s*# (config|hca|assume-devices): (\S+)$`)
	promiseLine = regexp.MustCompile(`^\s*# explain: (.+?): (.+)$`)
)

func readPromises(t *testing.T, file string) promises {
	t.Helper()
	text := scratch.Read(t, file)
	p := promises{hca: "mlx5_0"}
	given := map[string]bool{}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if m := promiseLine.FindStringSubmatch(line); m != nil {
			p.all = append(p.all, promise{m[1], m[2]})
			continue
		}
		m := settingLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if given[m[1]] {
			t.Errorf("%s is said twice", m[1])
		}
		given[m[1]] = true
		switch m[1] {
		case "config":
			p.config = filepath.Join(examples, m[2])
		case "hca":
			p.hca = m[2]
		case "assume-devices":
			p.assume = m[2]
		}
	}
	return p
}

// explained are the containers of an example and what explain says of each: the names that it may be called by, and the
// summary.
type explained struct {
	names   []string
	summary string
}

func explainExample(t *testing.T, file string, p promises) []explained {
	t.Helper()
	config := p.config
	if config == "" {
		config = clitest.File(t, "{}\n")
	}
	args := []string{"explain", "-f", file, "--config", config, "--hca", p.hca, "-o", "json"}
	if p.assume != "" {
		args = append(args, "--assume-devices", p.assume)
	}
	got := program.Call("", args...)
	var result struct {
		Problems []string
		Pods     []struct {
			Object, Path string
			Problems     []string
			Containers   []struct{ Name, Summary string }
		}
	}
	if err := json.Unmarshal([]byte(got.Stdout), &result); err != nil {
		t.Fatalf("%v: %+v", err, got)
	}
	problems := result.Problems
	var all []explained
	for _, pod := range result.Pods {
		problems = append(problems, pod.Problems...)
		for _, c := range pod.Containers {
			all = append(all, explained{[]string{c.Name, pod.Object + " " + c.Name, pod.Object + " " + pod.Path +
				" " + c.Name}, c.Summary})
		}
	}
	if len(problems) > 0 {
		t.Errorf("explain finds problems: %q", problems)
	}
	return all
}

// keeps compares a promise, which may be a beginning followed by an ellipsis.
func (p promise) keeps(summary string) bool {
	if beginning, ok := strings.CutSuffix(p.verdict, "…"); ok {
		return strings.HasPrefix(summary, beginning)
	}
	return p.verdict == summary
}

// TestExamples: each example gives what its comments promise, and each configuration is good.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(examples, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples in %s: %v", examples, err)
	}
	kept := 0
	for _, file := range files {
		if strings.HasSuffix(file, ".values.yaml") { // of a chart
			continue
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			p := readPromises(t, file)
			if len(p.all) == 0 {
				if got := program.Words("config check", file); got.Status != 0 || got.Stderr != "" {
					t.Errorf("it promises nothing, so it is a configuration, and one with problems: %+v", got)
				}
				return
			}
			left := slices.Clone(p.all)
			for _, c := range explainExample(t, file, p) {
				i := slices.IndexFunc(left, func(p promise) bool { return slices.Contains(c.names, p.container) })
				if i < 0 {
					t.Errorf("nothing is promised of %s: %s", c.names[2], c.summary)
					continue
				}
				if !left[i].keeps(c.summary) {
					t.Errorf("%s\npromised: %s\nexplain:  %s", c.names[2], left[i].verdict, c.summary)
				}
				left = slices.Delete(left, i, i+1)
				kept++
			}
			for _, p := range left {
				t.Errorf("there is no container for what is promised of %s", p.container)
			}
		})
	}
	if kept == 0 {
		t.Error("no example promises anything")
	}
}

// TestDoctor_recordedNode: on the recorded node, the doctor finds the one fault that it was recorded with, and nothing unknown.
func TestDoctor_recordedNode(t *testing.T) {
	got := program.Call("", "doctor", "--root", filepath.Join(examples, "node.tar.gz"), "-o", "json")
	var result struct {
		Findings []struct{ Check, Status, Object string }
	}
	if err := json.Unmarshal([]byte(got.Stdout), &result); err != nil || got.Status != 1 {
		t.Fatalf("%v, exit status %d: %s", err, got.Status, got.Stderr)
	}
	var faults []string
	for _, f := range result.Findings {
		if f.Status == "wrong" || f.Status == "unknown" {
			faults = append(faults, strings.Join([]string{f.Status, f.Check, f.Object}, ", "))
		}
	}
	if diff := cmp.Diff([]string{"wrong, container-memlock, container ml/trainer low"}, faults); diff != "" {
		t.Error(diff)
	}
}
