// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package schema tests that the JSON schema of the plugin's configuration is made from the types of plugin/policy and
// their comments, and writes it.
package schema

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/invopop/jsonschema"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	types "github.com/rdma-spec/rdma-spec/test/testing/schema"
)

const (
	// in the module's root
	sources = "plugin/policy"
	// where editors get it
	id = "https://raw.githubusercontent.com/rdma-spec/rdma-spec/main/deploy/config.schema.json"
)

// words are the values of properties that take no others.
var words = map[string][]any{
	"Inject.functions":      functions,
	"RuleInject.functions":  functions,
	"Inject.linkLayers":     linkLayers,
	"RuleInject.linkLayers": linkLayers,
	"Config.ipcLock":        ipcLockWords,
	"Rule.ipcLock":          ipcLockWords,
}

var (
	ipcLockWords = []any{true, false, "requested", "always"}
	functions    = []any{"physical", "virtual", "scalable"}
	linkLayers   = []any{"InfiniBand", "Ethernet"}
)

// generate returns the schema's JSON text. The working directory must be the module's root, for the comments.
func generate(t *testing.T) string {
	t.Helper()
	r := types.Reflector(t, sources)
	r.ExpandedStruct = true
	r.Mapper = scalar
	schema := r.Reflect(policy.Config{})
	schema.ID, schema.Title = id, "Configuration of nri-rdma"
	restrict("Config", schema)
	for name, definition := range schema.Definitions {
		restrict(name, definition)
	}
	addDefaults(t, schema, schema.Definitions, policy.Default())
	return golden.JSON(t, schema)
}

// scalar is the schema of a policy.Scalar, which is written as a string or a number; those that can be a boolean have
// words. Other types have the one that they show.
func scalar(t reflect.Type) *jsonschema.Schema {
	if t != reflect.TypeFor[policy.Scalar]() {
		return nil
	}
	return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{{Type: "string"}, {Type: "number"}}}
}

// restrict returns a type's properties the words that they take.
func restrict(name string, definition *jsonschema.Schema) {
	for p := definition.Properties.Oldest(); p != nil; p = p.Next() {
		values, ok := words[name+"."+p.Key]
		switch {
		case !ok:
		case p.Value.Type == "array":
			p.Value.Items.Enum = values
		default:
			p.Value.AnyOf, p.Value.Enum = nil, values
		}
	}
}

// addDefaults writes the values of the default configuration to the properties of a schema, down to the scalars and
// lists.
func addDefaults(t *testing.T, schema *jsonschema.Schema, definitions jsonschema.Definitions, defaults any) {
	t.Helper()
	text, err := json.Marshal(defaults)
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]json.RawMessage
	if err := json.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	for p := schema.Properties.Oldest(); p != nil; p = p.Next() {
		if definition, isObject := definitions[strings.TrimPrefix(p.Value.Ref, "#/$defs/")]; isObject {
			addDefaults(t, definition, definitions, values[p.Key])
		} else {
			p.Value.Default = values[p.Key]
		}
	}
}

const file = "deploy/config.schema.json"

// TestSchemaIsUpToDate. What the schema takes and rejects is tested where Helm reads it, in the chart's values.
func TestSchemaIsUpToDate(t *testing.T) {
	t.Chdir("../../../..")
	golden.Compare(t, file, generate(t))
}

// TestWords: the policy takes each of the words that the schema lists, and no other.
func TestWords(t *testing.T) {
	places := map[string]string{
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
