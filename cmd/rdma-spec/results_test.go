// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/invopop/jsonschema"
	validator "github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/internal/config"
	"github.com/rdma-spec/rdma-spec/cmd/internal/explain"
	why "github.com/rdma-spec/rdma-spec/cmd/internal/why/command"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/cdi"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/devices"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	nodecdi "github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cdi"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/nodetest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/repair"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/status"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/verify"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
	"github.com/rdma-spec/rdma-spec/test/testing/schema"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

const (
	schemaFile  = "deploy/results.schema.json"
	schemaURL   = "https://raw.githubusercontent.com/rdma-spec/rdma-spec/main/" + schemaFile
	resultsPage = "docs/json.md"
)

// results are the results of the commands, by their kind.
var results = map[string]any{
	"Status":      status.Result{},
	"Doctor":      doctor.Diagnosis{},
	"Devices":     devices.Inventory{},
	"Explain":     explain.Result{},
	"Verify":      verify.Result{},
	"Why":         why.Result{},
	"Repair":      repair.Result{},
	"Configure":   configure.Result{},
	"ConfigCheck": config.Result{},
	"CDIList":     cdi.Result{},
}

// titles are the names of types in the schema, if the names in Go do not say enough.
var titles = map[reflect.Type]string{
	reflect.TypeFor[explain.Container](): "ExplainedContainer",
	reflect.TypeFor[explain.Pod]():       "ExplainedPod",
	reflect.TypeFor[repair.Container]():  "RepairedContainer",
	reflect.TypeFor[node.JudgedBy]():     "Policy",
	reflect.TypeFor[cri.Identity]():      "Runtime",
	reflect.TypeFor[nodecdi.Found]():     "CDIFile",
	reflect.TypeFor[nodecdi.Device]():    "CDIDevice",
}

// forPeople are the fields whose text can change in any version.
var forPeople = []string{"affected", "apart", "errors", "evidence", "fix", "impact", "left", "message", "next", "notes", "problem", "problems",
	"reason", "summary", "text", "unread", "warning", "warnings"}

// inBytes returns the fields that the types with a MarshalJSON method write in addition to their fields in Go.
func inBytes(typ reflect.Type) (fields []reflect.StructField) {
	limits := map[reflect.Type][]string{reflect.TypeFor[spec.Grant](): {"Memlock"}, reflect.TypeFor[spec.Rlimit](): {"Soft", "Hard"}}
	for _, name := range limits[typ] {
		fields = append(fields, reflect.StructField{Name: name + "Bytes", Type: reflect.TypeFor[uint64](), Tag: reflect.StructTag(
			`json:"` + strings.ToLower(name) + `Bytes" jsonschema_description:"` + name + `Bytes is ` + name + ` in bytes."`)})
	}
	return fields
}

// stringSchema returns the schema of a type that is written as a string or as an object of a different kind: the
// constants of a string type are examples of its values. It returns nil for other types.
func stringSchema(t *testing.T, typ reflect.Type) *jsonschema.Schema {
	switch {
	case typ == reflect.TypeFor[json.RawMessage]():
		return &jsonschema.Schema{Type: "object"}
	case typ == reflect.TypeFor[spec.Limit](), typ == reflect.TypeFor[hca.Mode]():
		return &jsonschema.Schema{Type: "string"}
	case typ.Kind() == reflect.String && typ.PkgPath() != "":
		return &jsonschema.Schema{Type: "string", Examples: constants(t, typ)}
	}
	return nil
}

// constants returns the values of a string type's constants, in the order of their declarations.
func constants(t *testing.T, typ reflect.Type) (values []any) {
	dir := strings.TrimPrefix(typ.PkgPath(), schema.Module+"/")
	names, err := filepath.Glob(repository.Path(t, dir+"/*.go"))
	must.Succeed(t, err)
	for _, name := range names {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		must.Succeed(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			value, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			if of, ok := value.Type.(*ast.Ident); !ok || of.Name != typ.Name() || len(value.Values) != 1 {
				return true
			}
			if literal, ok := value.Values[0].(*ast.BasicLit); ok && literal.Value != `""` {
				text, err := strconv.Unquote(literal.Value)
				must.Succeed(t, err)
				values = append(values, text)
			}
			return true
		})
	}
	return values
}

// describe returns the schema of all results. The working directory must be the repository's root.
func describe(t *testing.T) *jsonschema.Schema {
	kinds := maps.Clone(titles)
	for kind, result := range results {
		kinds[reflect.TypeOf(result)] = kind
	}
	r := schema.Reflector(t, "cmd", "plugin/policy", "spec") // an empty field can be omitted, so none is required
	r.AllowAdditionalProperties = true                       // a later version can add fields
	r.Namer = func(typ reflect.Type) string { return kinds[typ] }
	r.Mapper = func(typ reflect.Type) *jsonschema.Schema { return stringSchema(t, typ) }
	r.AdditionalFields = inBytes
	all := &jsonschema.Schema{Version: jsonschema.Version, ID: schemaURL, Definitions: jsonschema.Definitions{}}
	for _, kind := range slices.Sorted(maps.Keys(results)) {
		result := r.Reflect(results[kind])
		maps.Copy(all.Definitions, result.Definitions)
		all.OneOf = append(all.OneOf, &jsonschema.Schema{Ref: result.Ref})
		definition := all.Definitions[kind]
		definition.Required = []string{"apiVersion", "kind"}
		definition.Properties.Value("apiVersion").Const = cli.APIVersion
		definition.Properties.Value("kind").Const = kind
	}
	return all
}

// TestResultsSchema checks that the schema has the fields of the results, that each field has a type and a description,
// and that the page names the fields for people. -update writes the schema.
func TestResultsSchema(t *testing.T) {
	t.Chdir("../..")
	page := strings.Join(strings.Fields(scratch.Read(t, resultsPage)), " ")
	if !strings.Contains(page, "`"+strings.Join(forPeople, "`, `")+"`") {
		t.Errorf("%s does not name the fields for people: %q", resultsPage, forPeople)
	}
	all := describe(t)
	used := map[string]bool{}
	for name, definition := range all.Definitions {
		for p := definition.Properties.Oldest(); p != nil; p = p.Next() {
			used[p.Key] = true
			property := p.Value
			if len(property.OneOf) > 0 { // it can be null
				property = property.OneOf[0]
			}
			if property.Description == "" || property.Type == "" && property.Ref == "" {
				t.Errorf("%s: the field of %s has no comment in Go, or no type: %+v", name, p.Key, property)
			}
		}
	}
	for _, name := range forPeople {
		if !used[name] {
			t.Errorf("no result has a field %q", name)
		}
	}
	golden.Compare(t, schemaFile, golden.JSON(t, all))
}

// strict returns a validator of results that accepts only the fields in the schema.
func strict(t *testing.T) *validator.Schema {
	document, err := validator.UnmarshalJSON(strings.NewReader(repository.Read(t, schemaFile)))
	must.Succeed(t, err)
	for _, definition := range document.(map[string]any)["$defs"].(map[string]any) {
		definition.(map[string]any)["additionalProperties"] = false
	}
	compiler := validator.NewCompiler()
	must.Succeed(t, compiler.AddResource(schemaURL, document))
	compiled, err := compiler.Compile(schemaURL)
	must.Succeed(t, err)
	return compiled
}

// TestResults calls each command, and checks its result against the schema.
func TestResults(t *testing.T) {
	files := hcatest.V100Node().Files()
	nodetest.AddProcess(files, 1, "8388608 8388608", nodetest.Plain)
	files["usr/lib/systemd/system/containerd.service"] = "[Service]\n"
	flags := nodetest.By(t, "{}", nodetest.Serve(t, files.Root(t), nodetest.Holder(1, 0, "train-0")))
	onNode, file, root := " "+strings.Join(flags, " "), flags[1], flags[3]
	calls := map[string]string{
		"devices":      "devices --root " + root,
		"cdi list":     "cdi list --root " + root,
		"status":       "status" + onNode,
		"repair":       "repair --dry-run" + onNode,
		"explain":      "explain -f ../../deploy/examples/device-plugin.yaml --hca mlx5_0 --config " + file,
		"verify":       "verify --lock 4Ki",
		"why":          "why ibv_reg_mr failed: Bad address",
		"doctor":       "doctor" + onNode,
		"config check": "config check " + file,
		"configure":    "configure limits containerd --dry-run --root " + root,
	}
	accepted := strict(t)
	for _, c := range commands(newRootCommand()) {
		name := strings.TrimPrefix(c.CommandPath(), "rdma-spec ")
		flag := c.Flags().Lookup("output")
		if flag == nil || !strings.Contains(flag.Usage, "json") || strings.HasPrefix(name, "configure ") {
			continue // the commands below configure have its result
		}
		args, known := calls[name]
		if !known {
			t.Errorf("%s is not tested here", name)
			continue
		}
		delete(calls, name)
		got := program.Words(args, "-o", "json")
		result, err := validator.UnmarshalJSON(strings.NewReader(got.Stdout))
		if err != nil || got.Status > 1 {
			t.Errorf("%s: %v: %+v", name, err, got)
			continue
		}
		if err := accepted.Validate(result); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		kind, _ := result.(map[string]any)["kind"].(string)
		if !strings.EqualFold(kind, strings.ReplaceAll(name, " ", "")) {
			t.Errorf("%s: its kind is %q", name, kind)
		}
	}
	if len(calls) > 0 {
		t.Errorf("no command has a result for programs: %q", slices.Collect(maps.Keys(calls)))
	}
}
