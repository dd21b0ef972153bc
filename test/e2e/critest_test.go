// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/node"
	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// critestFocus selects critest's specs.
var critestFocus = flag.String("critest-focus", ".", "regular expression of critest's specs to run")

// noRegistry matches the specs that pull their own images, which needs a registry.
const noRegistry = `Image Manager|Image Consistency|Image Identifier Consistency|Multiple Containers|port mapping|portforward|HostNetwork|` +
	`SupplementalGroupsPolicy|RunAsUserName|NoNewPrivs`

// TestCritest runs critest, Kubernetes' own tests for container runtimes, without the plugin and with it. The same
// specs must pass.
func TestCritest(t *testing.T) {
	restartWith(t, func(o *containerd.Options) { o.Network = true })
	without := runCritest(t)
	startPluginWith(t)
	with := runCritest(t)
	for _, state := range []string{"passed", "failed", "skipped"} {
		t.Logf("%d specs %s without the plugin, %d with it:\n%s", len(without[state]), state, len(with[state]),
			strings.Join(with[state], "\n"))
	}
	if len(without["passed"]) == 0 {
		t.Error("no spec passes without the plugin: this tests nothing")
	}
	if diff := cmp.Diff(without, with); diff != "" {
		t.Errorf("specs by what became of them, -without the plugin +with it:\n%s", diff)
	}
}

// runCritest runs critest with the node's busybox as its image, and returns the names of the specs by their results.
func runCritest(t *testing.T) map[string][]string {
	t.Helper()
	parts := nodeParts(t)
	dir := scratch.Dir(t)
	images, report := filepath.Join(dir, "images.yaml"), filepath.Join(dir, "report.json")
	scratch.File(t, images, "defaultTestContainerImage: "+node.ImageName("busybox")+
		"\n", 0o644)
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	begin := time.Now()
	out, err := exec.CommandContext(ctx, parts.Critest(), "--runtime-endpoint", "unix://"+containerd.Socket,
		"--test-images-file", images,
		"--ginkgo.focus", *critestFocus, "--ginkgo.skip", noRegistry, "--ginkgo.seed", "1", "--ginkgo.flake-attempts", "2",
		"--ginkgo.json-report", report, "--ginkgo.no-color").CombinedOutput()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) { // the report contains the specs that fail
		t.Fatalf("critest: %v\n%s", err, out)
	}
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatalf("critest has written no report: %v\n%s", err, out)
	}
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts []string
			LeafNodeType            string
			LeafNodeText, State     string
			RunTime                 time.Duration
			Failure                 struct{ Message string }
		}
	}
	if err := json.Unmarshal(text, &suites); err != nil {
		t.Fatal(err)
	}
	specs := map[string][]string{}
	for _, suite := range suites {
		for _, spec := range suite.SpecReports {
			if spec.LeafNodeType != "It" {
				continue
			}
			name := strings.Join(append(spec.ContainerHierarchyTexts, spec.LeafNodeText), " ")
			specs[spec.State] = append(specs[spec.State], name)
			if spec.State != "skipped" {
				first, _, _ := strings.Cut(spec.Failure.Message, "\n")
				t.Logf("%s, %s: %s %s", name, spec.State, spec.RunTime.Round(100*time.Millisecond), first)
			}
		}
	}
	for _, names := range specs {
		slices.Sort(names)
	}
	t.Logf("critest took %s", time.Since(begin).Round(time.Second))
	return specs
}
