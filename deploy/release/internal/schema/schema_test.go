// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"

	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

const file = "deploy/config.schema.json"

// example is a configuration that says everything.
const example = `
memlock: unlimited
ipcLock: true              # false, requested, always
optIn:
  devices: true
  resources: []
  namespaces: []
  mofedRuntimeHandlers: [nvidia*, ""]
inject:
  namespaces: []
  names: ["*"]
  functions: [physical]
  linkLayers: []
  netdevs: []
  numaNodes: []
  management: false
repair: {mode: report, every: 30s}
skipRuntimeHandlers: ["kata*", "runsc*", "gvisor"]
rules:
- name: training
  match: {namespaces: [ml-*], resources: [rdma/rdma_v100]}
  memlock: memory-limit
- {match: {resources: [example.com/rdma]}, memlock: unchanged, inject: {always: true}}
- {match: {namespaces: [fabric]}, memlock: 68719476736, ipcLock: false, inject: {names: [mlx5_*], functions: [virtual], linkLayers: [InfiniBand], numaNodes: [0, 1], management: true}}
`

func inModuleRoot(t *testing.T) { t.Chdir("../../../..") }

func TestSchemaIsUpToDate(t *testing.T) {
	inModuleRoot(t)
	want, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, file, string(want))
}

func TestSchemaTakesWhatThePolicyTakes(t *testing.T) {
	inModuleRoot(t)
	schema := readSchema(t)
	texts := map[string]string{"the example": example, "nothing": "{}"}
	configurations, err := filepath.Glob("deploy/examples/config*.yaml")
	if err != nil || len(configurations) == 0 {
		t.Fatalf("no configurations among the examples: %v", err)
	}
	for _, name := range configurations {
		texts[name] = scratch.Read(t, name)
	}
	for name, text := range texts {
		if _, err := policy.FromText([]byte(text)); err != nil {
			t.Errorf("%s is not a valid configuration: %v", name, err)
		}
		for _, problem := range schema.check(parse(t, text)) {
			t.Errorf("%s: %s", name, problem)
		}
	}
	for text, want := range map[string]string{
		"memlok: 1Gi":                          "memlok is unknown",
		"memlock: [1]":                         "memlock is of none of the types",
		"optIn: {devices: 'yes'}":              "optIn.devices is not of type boolean",
		"ipcLock: force":                       "ipcLock is none of the words",
		"rules: {}":                            "rules is not of type array",
		"rules: [{match: {namespace: [x]}}]":   "rules[0].match.namespace is unknown",
		"rules: [{match: {namespaces: [1]}}]":  "rules[0].match.namespaces[0] is not of type string",
		"rules: [{inject: {namespaces: [x]}}]": "rules[0].inject.namespaces is unknown",
		"inject: {always: true}":               "inject.always is unknown",
		"inject: {linkLayers: [Infiniband]}":   "inject.linkLayers[0] is none of the words",
		"inject: {functions: [vf]}":            "inject.functions[0] is none of the words",
		"inject: {numaNodes: [zero]}":          "inject.numaNodes[0] is not of type integer",
		"rules: [{inject: {management: 'x'}}]": "rules[0].inject.management is not of type boolean",
	} {
		if got := schema.check(parse(t, text)); !slices.Contains(got, want) {
			t.Errorf("%s: found %q, want %q", text, got, want)
		}
	}
}

// TestWords: the policy takes each of the words that the schema lists, and no other.
func TestWords(t *testing.T) {
	places := map[string]string{
		"Repair.mode":           "repair: {mode: %v}",
		"Inject.functions":      "inject: {functions: [%v]}",
		"RuleInject.functions":  "rules: [{match: {namespaces: [x]}, inject: {functions: [%v]}}]",
		"Inject.linkLayers":     "inject: {linkLayers: [%v]}",
		"RuleInject.linkLayers": "rules: [{match: {namespaces: [x]}, inject: {linkLayers: [%v]}}]",
		"Config.ipcLock":        "ipcLock: %v",
		"Rule.ipcLock":          "rules: [{match: {namespaces: [x]}, ipcLock: %v}]",
	}
	for place, values := range words {
		for _, value := range append(slices.Clone(values), "another") {
			text := fmt.Sprintf(places[place], value)
			if _, err := policy.FromText([]byte(text)); (err == nil) != (value != "another") {
				t.Errorf("%s: %v", text, err)
			}
		}
	}
}

// node is as much of a JSON schema as ours uses.
type node struct {
	Ref        string           `json:"$ref"`
	Defs       map[string]*node `json:"$defs"`
	Type       string           `json:"type"`
	Enum       []any            `json:"enum"`
	AnyOf      []*node          `json:"anyOf"`
	Properties map[string]*node `json:"properties"`
	Additional json.RawMessage  `json:"additionalProperties"`
	Items      *node            `json:"items"`
	all        map[string]*node
}

func readSchema(t *testing.T) *node {
	t.Helper()
	text, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	var n node
	if err := json.Unmarshal(text, &n); err != nil {
		t.Fatal(err)
	}
	n.all = n.Defs
	return &n
}

func parse(t *testing.T, text string) any {
	t.Helper()
	var value any
	if err := yaml.Unmarshal([]byte(text), &value); err != nil {
		t.Fatal(err)
	}
	return value
}

// check returns what in a document is not as the schema says.
func (n *node) check(document any) []string { return check(n, n.all, document, "") }

func check(n *node, defs map[string]*node, value any, path string) []string {
	if n.Ref != "" {
		n = defs[strings.TrimPrefix(n.Ref, "#/$defs/")]
	}
	switch {
	case len(n.Enum) > 0 && !slices.Contains(n.Enum, value):
		return []string{path + " is none of the words"}
	case len(n.AnyOf) > 0 && !slices.ContainsFunc(n.AnyOf, func(one *node) bool { return isA(one.Type, value) }):
		return []string{path + " is of none of the types"}
	case n.Type != "" && !isA(n.Type, value):
		return []string{path + " is not of type " + n.Type}
	}
	var problems []string
	switch value := value.(type) {
	case []any:
		for i, element := range value {
			problems = append(problems, check(n.Items, defs, element, fmt.Sprintf("%s[%d]", path, i))...)
		}
	case map[string]any:
		for key, element := range value {
			at := strings.TrimPrefix(path+"."+key, ".")
			var others node
			switch property, known := n.Properties[key]; {
			case known:
				problems = append(problems, check(property, defs, element, at)...)
			case json.Unmarshal(n.Additional, &others) == nil:
				problems = append(problems, check(&others, defs, element, at)...)
			default:
				problems = append(problems, at+" is unknown")
			}
		}
	}
	return problems
}

func isA(kind string, value any) bool {
	switch kind {
	case "object":
		_, ok := value.(map[string]any)
		return ok
	case "array":
		_, ok := value.([]any)
		return ok
	case "string":
		_, ok := value.(string)
		return ok
	case "boolean":
		_, ok := value.(bool)
		return ok
	case "number":
		_, ok := value.(float64)
		return ok
	case "integer":
		number, ok := value.(float64)
		return ok && number == float64(int64(number))
	}
	return false
}
