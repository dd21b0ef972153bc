// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/internal/clitest"
	"github.com/rdma-spec/rdma-spec/cmd/internal/config"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// program has the commands that these tests call.
var program = clitest.New(nil, func() []*cobra.Command {
	return []*cobra.Command{config.Command()}
})

// config check and config show name the file as it was named, or standard input.
func TestConfig(t *testing.T) {
	names := map[string]string{"EMPTY": clitest.File(t, "{}"), "FOLDER": scratch.Dir(t), "SAYS-MUCH": clitest.File(t, `
rules: [{memlock: memory-limit, match: {namespaces: [ml-*]}, name: "true"}]
optIn: {resources: [rdma/*, "*/hostdev"]}
ipcLock: false
memlock: 16Gi
`)}
	program.Compare(t, "config", names, `
		config check EMPTY
		config check FOLDER
		config check testdata/none.yaml
		config check - <<< rules: [{match: {namespaces: [a]}}]
		config check - <<< {memlock: much, ipcLock: force}
		config check - <<< rules: [{match: {resources: [rdma/*]}}]
		config check - <<< optIn: {resources: [rdma/*]}
		config check - <<< memlok: 1Gi
		config check - -o json <<< rules: []
		config check - -o yaml <<< memlok: 1Gi
		config show SAYS-MUCH
		config show testdata/none.yaml
		config show - <<< memlok: 1Gi`)
	// Without a file, the plugin's own is checked, whether this host has one or not.
	if got := program.Call("", "config", "check"); !strings.Contains(got.Stdout+got.Stderr, "/etc/rdma-spec/config.yaml") {
		t.Errorf("without a file: %+v", got)
	}
	shown := program.Call("", "config", "show", names["SAYS-MUCH"])
	if diff := cmp.Diff(shown, program.Call(shown.Stdout, "config", "show", "-")); diff != "" {
		t.Errorf("what it shows is not shown again (-first +second):\n%s", diff)
	}
}

// TestConfigShowTakesWhatItShows: the defaults, shown and read, are the defaults.
func TestConfigShowTakesWhatItShows(t *testing.T) {
	shown := program.Call("", "config", "show", clitest.File(t, "{}"))
	config, err := policy.Parse([]byte(shown.Stdout))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(policy.Default(), config); diff != "" {
		t.Errorf("-default +shown:\n%s", diff)
	}
}
