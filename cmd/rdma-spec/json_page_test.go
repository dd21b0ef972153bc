// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/nodetest"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// jsonSchema describes the results for programs, and jsonPage says what holds for all of them.
const (
	jsonSchema = "../../deploy/results.schema.json"
	jsonPage   = "../../docs/json.md"
)

// results are the Go types of the commands' results, in the order of the page.
var results = []struct{ command, dir, name string }{
	{"status", "cmd/rdma-spec/internal/status", "listed"},
	{"doctor", "cmd/rdma-spec/internal/doctor", "Diagnosis"},
	{"devices", "cmd/rdma-spec/internal/devices", "Inventory"},
	{"explain", "cmd/internal/explain", "explanation"},
	{"verify", "cmd/rdma-spec/internal/verify", "verification"},
	{"why", "cmd/internal/why/command", "result"},
	{"repair", "cmd/rdma-spec/internal/repair", "repairs"},
	{"configure", "cmd/rdma-spec/internal/configure", "result"},
	{"config check", "cmd/internal/config", "checked"},
	{"cdi list", "cmd/rdma-spec/internal/cdi", "cdiFiles"},
}

// forPeople are the fields whose words can change in any version.
var forPeople = []string{"apart", "errors", "evidence", "fix", "impact", "left", "message", "next", "notes", "problem", "problems",
	"reason", "summary", "text", "unread", "warning", "warnings"}

// plainFields are fields whose comment would only repeat the name to a reader of Go. Those of one type have it in
// front.
var plainFields = map[string]string{
	"namespace": "of the pod", "pod": "its name", "container": "its name", "id": "the container's", "pid": "of its first process",
	"policy": "what the containers were judged by", "runtimes": "those that answered", "notes": "further facts, for people",
	"findings": "what each check found", "verdict": "the cause, if RDMA fails", "ports": "in their order",
	"hcas": "their names", "pods": "each pod template of the manifest", "problems": "what is wrong, for people",
	"Status.containers": "the RDMA containers, and those that cannot be examined", "Repair.dryRun": "nothing was raised",
	"Repair.containers": "those that were raised, or would be", "Explained pod.containers": "all that it has",
	"ConfigCheck.file": "that was checked", "ConfigCheck.valid": "whether the plugin accepts it", "ConfigCheck.rules": "how many it has",
	"CDIList.files": "each CDI file of the node", "CDI file.devices": "that it defines", "Policy.file": "the policy in force, or the configuration",
	"Runtime.version": "of the runtime", "Runtime.socket": "where it was asked",
	"Container.evidence": "what the signal was: a device, a resource, an annotation's key", "Container.rule": "the rule that applies",
	"Container.userNamespace": "it has a user namespace of its own, where IPC_LOCK does not count",
	"Container.hcas":          "those that it holds", "Container.allDevices": "it can open every device of the node, as a privileged one",
	"Container.problems": "what differs from the policy, for people", "Finding.check": "its name",
	"Finding.impact": "the impact of a fault", "Container.use": "how its processes use RDMA", "HCA.name": "as in /sys/class/infiniband", "HCA.firmware": "its version",
	"Device.major": "its number", "Device.minor": "its number", "Device.uid": "its owner", "Device.gid": "its group",
	"Verdict.text": "the verdict in one line", "Repaired container.memlockBytes": "the same in bytes",
	"Repaired container.processes": "how many have less", "Repaired container.storedSpec": "the spec that containerd stores has less",
	"Repaired container.errors": "what was not raised, and why", "Grant.memlock": "RLIMIT_MEMLOCK, in words",
	"Grant.memlockBytes": "the same in bytes", "Rlimit.soft": "the limit in force, in words", "Rlimit.softBytes": "the same in bytes",
	"Rlimit.hard": "up to which the process can raise it, in words", "Rlimit.hardBytes": "the same in bytes",
	"Port.smLID": "as lid, the subnet manager's", "Port.gids": "the port's table", "Explained container.name": "its name",
	"Explained container.otherwise": "the plugin's if no device is injected, where the verdict is if-injected",
	"GID.index":                     "in the port's table", "Decision.grant": "what the container gets", "Decision.refusal": "why it is refused",
	"Refusal.message": "the error of its creation",
}

// A goType is a type of the repository, by its directory and its name.
type goType struct{ dir, name string }

// field is a field of a result.
type field struct{ name, typ, doc string }

// reader reads the types of the repository's packages, which are parsed when they are needed.
type reader struct {
	t        *testing.T
	packages map[string]map[string]*ast.File
	sections []goType // in the order in which they are met
}

const module = "github.com/rdma-spec/rdma-spec/"

func (r *reader) files(dir string) map[string]*ast.File {
	if r.packages[dir] == nil {
		r.packages[dir] = map[string]*ast.File{}
		names, err := filepath.Glob(repository.Path(r.t, dir+"/*.go"))
		if err != nil || len(names) == 0 {
			r.t.Fatalf("%s: %v", dir, err)
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				r.t.Fatal(err)
			}
			r.packages[dir][name] = file
		}
	}
	return r.packages[dir]
}

// find returns a type's declaration, its file, and the struct that its MarshalJSON writes, if any.
func (r *reader) find(g goType) (spec *ast.TypeSpec, file *ast.File, written *ast.StructType) {
	for _, f := range r.files(g.dir) {
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if s, ok := s.(*ast.TypeSpec); ok && s.Name.Name == g.name {
						spec, file = s, f
						if s.Doc == nil {
							s.Doc = d.Doc
						}
					}
				}
			case *ast.FuncDecl:
				if d.Name.Name != "MarshalJSON" || d.Recv == nil {
					continue
				}
				if on, ok := d.Recv.List[0].Type.(*ast.Ident); !ok || on.Name != g.name {
					continue
				}
				ast.Inspect(d.Body, func(n ast.Node) bool {
					if s, ok := n.(*ast.StructType); ok {
						written = s
					}
					return true
				})
			}
		}
	}
	if spec == nil {
		r.t.Fatalf("%s has no type %s", g.dir, g.name)
	}
	return spec, file, written
}

// resolve returns the type of the repository that an expression names.
func (r *reader) resolve(dir string, file *ast.File, e ast.Expr) (g goType, ok bool) {
	switch e := e.(type) {
	case *ast.StarExpr:
		return r.resolve(dir, file, e.X)
	case *ast.Ident:
		return goType{dir, e.Name}, ast.IsExported(e.Name) || !slices.Contains([]string{"string", "bool", "int", "uint32", "uint64"}, e.Name)
	case *ast.SelectorExpr:
		for _, i := range file.Imports {
			path, _ := strconv.Unquote(i.Path.Value)
			if name := cmp.Or(i.Name, &ast.Ident{Name: filepath.Base(path)}).Name; name == e.X.(*ast.Ident).Name {
				inside, found := strings.CutPrefix(path, module)
				return goType{inside, e.Sel.Name}, found
			}
		}
	}
	return goType{}, false
}

// fields returns the fields that a type has in JSON, those of embedded types among them.
func (r *reader) fields(g goType) []field {
	spec, file, written := r.find(g)
	if own, ok := spec.Type.(*ast.StructType); ok && written == nil {
		written = own
	}
	if written == nil {
		return nil
	}
	return r.fieldsOf(g, file, spec, written)
}

// fieldsOf returns those of a struct: a type, or what it writes.
func (r *reader) fieldsOf(g goType, file *ast.File, spec *ast.TypeSpec, structure *ast.StructType) (all []field) {
	seen := map[string]bool{}
	add := func(fields ...field) {
		for _, f := range fields {
			if !seen[f.name] {
				seen[f.name] = true
				all = append(all, f)
			}
		}
	}
	for _, f := range structure.Fields.List {
		tag := ""
		if f.Tag != nil {
			text, _ := strconv.Unquote(f.Tag.Value)
			tag, _, _ = strings.Cut(reflect.StructTag(text).Get("json"), ",")
		}
		switch {
		case tag == "-" || len(f.Names) > 0 && tag == "":
		case len(f.Names) == 0 && tag == "":
			inner, _ := r.resolve(g.dir, file, f.Type)
			if inner.name == "fields" || inner.name == "plain" { // the type itself, without its MarshalJSON
				add(r.fieldsOf(g, file, spec, spec.Type.(*ast.StructType))...)
			} else if inner.dir != "" && inner.name != "container" {
				add(r.fields(inner)...)
			}
		default:
			add(field{tag, r.describe(g.dir, file, f.Type), r.doc(g, file, f)})
		}
	}
	return all
}

// describe returns a type in the words of JSON. A struct gets a section of its own.
func (r *reader) describe(dir string, file *ast.File, e ast.Expr) string {
	switch e := e.(type) {
	case *ast.ArrayType:
		return "list of " + r.describe(dir, file, e.Elt)
	case *ast.MapType:
		return "map of " + r.describe(dir, file, e.Value)
	}
	g, ours := r.resolve(dir, file, e)
	if !ours {
		name := fmt.Sprint(e)
		if s, ok := e.(*ast.SelectorExpr); ok && s.Sel.Name == "Time" {
			return "text"
		}
		if s, ok := e.(*ast.StarExpr); ok {
			name = fmt.Sprint(s.X)
		}
		return map[string]string{"string": "text", "bool": "true or false", "int": "number", "uint32": "number",
			"uint64": "number", "&{time Time}": "time"}[name] + map[bool]string{true: "object"}[strings.Contains(name, "RawMessage")]
	}
	spec, _, written := r.find(g)
	if _, ok := spec.Type.(*ast.StructType); !ok && written == nil {
		return "text"
	}
	if !slices.Contains(r.sections, g) {
		r.sections = append(r.sections, g)
	}
	return fmt.Sprintf("[%s](#%s)", title(g), strings.ReplaceAll(strings.ToLower(title(g)), " ", "-"))
}

// title is the heading of a type's section.
func title(g goType) string {
	name := strings.ToUpper(g.name[:1]) + g.name[1:]
	if other := map[goType]string{
		{"cmd/internal/explain", "Container"}:                  "Explained container",
		{"cmd/internal/explain", "explainedPod"}:               "Explained pod",
		{"cmd/rdma-spec/internal/repair", "repairedContainer"}: "Repaired container",
		{"cmd/rdma-spec/internal/node", "JudgedBy"}:            "Policy",
		{"cmd/rdma-spec/internal/node/cri", "Identity"}:        "Runtime",
		{"cmd/rdma-spec/internal/node/cdi", "Found"}:           "CDI file",
		{"cmd/rdma-spec/internal/node/cdi", "Device"}:          "CDI device",
	}[g]; other != "" {
		return other
	}
	return name
}

// doc returns the comment of a field, and the values of its type.
func (r *reader) doc(g goType, file *ast.File, f *ast.Field) string {
	text := strings.TrimSpace(f.Doc.Text() + " " + f.Comment.Text())
	text = strings.Join(strings.Fields(text), " ")
	if len(f.Names) > 0 {
		text = regexp.MustCompile(`^`+f.Names[0].Name+` ((is|are) )?`).ReplaceAllString(text, "")
		text = regexp.MustCompile(`\bnil\b`).ReplaceAllString(text, "null")
	}
	if of, ours := r.resolve(g.dir, file, f.Type); ours {
		var values []string
		for _, file := range r.files(of.dir) {
			for _, d := range file.Decls {
				if d, ok := d.(*ast.GenDecl); ok && d.Tok == token.CONST {
					for _, s := range d.Specs {
						if s, ok := s.(*ast.ValueSpec); ok && fmt.Sprint(s.Type) == of.name && len(s.Values) == 1 {
							if l, ok := s.Values[0].(*ast.BasicLit); ok && l.Value != `""` {
								values = append(values, "`"+strings.Trim(l.Value, `"`)+"`")
							}
						}
					}
				}
			}
		}
		if len(values) > 0 {
			text = strings.TrimPrefix(strings.TrimSuffix(text, ".")+"; one of "+strings.Join(values, ", "), "; ")
		}
	}
	return strings.ReplaceAll(strings.TrimSuffix(text, "."), "|", `\|`)
}

// typeName is a title in an address: "CDI device" is CDIDevice.
func typeName(title string) (name string) {
	for _, word := range strings.Fields(title) {
		name += strings.ToUpper(word[:1]) + word[1:]
	}
	return name
}

// schema is a type in JSON Schema, from its words.
func schema(typ string) map[string]any {
	if inner, list := strings.CutPrefix(typ, "list of "); list {
		return map[string]any{"type": "array", "items": schema(inner)}
	}
	if inner, isMap := strings.CutPrefix(typ, "map of "); isMap {
		return map[string]any{"type": "object", "additionalProperties": schema(inner)}
	}
	if name, _, link := strings.Cut(strings.TrimPrefix(typ, "["), "]"); link {
		return map[string]any{"$ref": "#/$defs/" + typeName(name)}
	}
	known := map[string]string{"text": "string", "time": "string", "true or false": "boolean", "number": "integer", "object": "object"}
	return map[string]any{"type": known[typ]}
}

// TestJSONSchema checks that the schema has each field of each result, as the comments of the Go types describe it, and
// that the page names those for people. -update writes the schema.
func TestJSONSchema(t *testing.T) {
	r := &reader{t: t, packages: map[string]map[string]*ast.File{}}
	used, types := map[string]bool{}, map[string]any{}
	section := func(heading string, fields []field) {
		properties := map[string]any{}
		for _, f := range fields {
			used[f.name] = true
			property := schema(f.typ)
			property["description"] = strings.ReplaceAll(cmp.Or(plainFields[heading+"."+f.name], f.doc, plainFields[f.name]), "`", "")
			if property["description"] == "" || property["type"] == "" {
				t.Errorf("%s: %s has no comment, or no type: %q", heading, f.name, f.typ)
			}
			properties[f.name] = property
		}
		types[typeName(heading)] = map[string]any{"type": "object", "properties": properties}
	}
	kinds := map[string]string{"repair": "Repair", "config check": "ConfigCheck", "cdi list": "CDIList", "status": "Status"}
	var commands []any
	for _, result := range results {
		kind := cmp.Or(kinds[result.command], strings.ToUpper(result.command[:1])+result.command[1:])
		section(kind, r.fields(goType{result.dir, result.name}))
		properties := types[kind].(map[string]any)["properties"].(map[string]any)
		properties["apiVersion"], properties["kind"] = map[string]any{"const": cli.APIVersion}, map[string]any{"const": kind}
		types[kind].(map[string]any)["required"] = []string{"apiVersion", "kind"}
		commands = append(commands, map[string]any{"$ref": "#/$defs/" + kind})
	}
	for i := 0; i < len(r.sections); i++ { // describing one can add others
		section(title(r.sections[i]), r.fields(r.sections[i]))
	}
	for _, name := range forPeople {
		if !used[name] {
			t.Errorf("no result has a field %q", name)
		}
	}
	if !strings.Contains(strings.Join(strings.Fields(scratch.Read(t, jsonPage)), " "), "`"+strings.Join(forPeople, "`, `")+"`") {
		t.Errorf("%s does not name the fields for people: %q", jsonPage, forPeople)
	}
	text, err := json.MarshalIndent(map[string]any{
		"$schema": "https://json-schema.org/draft/2020-12/schema",
		"$id":     "https://raw.githubusercontent.com/rdma-spec/rdma-spec/main/deploy/results.schema.json",
		"$defs":   types, "oneOf": commands,
	}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, jsonSchema, string(text)+"\n")
}

// TestResultsAreAsTheSchema calls each command, and checks that its result begins with the version and the command, and
// has no field that the schema does not have.
func TestResultsAreAsTheSchema(t *testing.T) {
	var schema struct {
		Types map[string]struct{ Properties map[string]any } `json:"$defs"`
	}
	if err := json.Unmarshal([]byte(scratch.Read(t, jsonSchema)), &schema); err != nil {
		t.Fatal(err)
	}
	described := map[string]bool{}
	for _, typ := range schema.Types {
		for name := range typ.Properties {
			described[name] = true
		}
	}
	files := hcatest.V100Node().Files()
	nodetest.AddProcess(files, 1, "8388608 8388608", nodetest.Plain)
	files["usr/lib/systemd/system/containerd.service"] = "[Service]\n"
	flags := nodetest.By(t, "{}", nodetest.Serve(t, files.Root(t), nodetest.Holder(1, 0, "train-0")))
	node, file, root := " "+strings.Join(flags, " "), flags[1], flags[3]
	calls := map[string]string{
		"devices":      "devices --root " + root,
		"cdi list":     "cdi list --root " + root,
		"status":       "status" + node,
		"repair":       "repair --dry-run" + node,
		"explain":      "explain -f ../../deploy/examples/device-plugin.yaml --hca mlx5_0 --config " + file,
		"verify":       "verify --lock 4Ki",
		"why":          "why ibv_reg_mr failed: Bad address",
		"doctor":       "doctor" + node,
		"config check": "config check " + file,
		"configure":    "configure limits containerd --dry-run --root " + root,
	}
	for _, c := range commands(newRootCommand()) {
		name := strings.TrimPrefix(c.CommandPath(), "rdma-spec ")
		flag := c.Flags().Lookup("output")
		if flag == nil || !strings.Contains(flag.Usage, "json") || strings.HasPrefix(name, "configure ") {
			continue // those below configure have its result
		}
		args, known := calls[name]
		if !known || !slices.ContainsFunc(results, func(r struct{ command, dir, name string }) bool { return r.command == name }) {
			t.Errorf("%s is not tested here", name)
			continue
		}
		delete(calls, name)
		got := program.Words(args, "-o", "json")
		var result map[string]any
		if err := json.Unmarshal([]byte(got.Stdout), &result); err != nil || got.Status > 1 {
			t.Errorf("%s: %v: %+v", name, err, got)
			continue
		}
		kind := strings.ReplaceAll(strings.ToLower(result["kind"].(string)), " ", "")
		if result["apiVersion"] != cli.APIVersion || kind != strings.ReplaceAll(name, " ", "") {
			t.Errorf("%s: apiVersion %q, kind %q", name, result["apiVersion"], result["kind"])
		}
		delete(result, "spec")
		for _, key := range keys(result) {
			if !described[key] {
				t.Errorf("%s: the schema does not have %q", name, key)
			}
		}
	}
	if len(calls) > 0 {
		t.Errorf("no command has a result for programs: %q", slices.Collect(maps.Keys(calls)))
	}
}

// keys returns the keys in a value of JSON. What is below spec is an OCI spec.
func keys(value any) (all []string) {
	switch value := value.(type) {
	case map[string]any:
		for key, inner := range value {
			all = append(all, key)
			if key != "spec" {
				all = append(all, keys(inner)...)
			}
		}
	case []any:
		for _, inner := range value {
			all = append(all, keys(inner)...)
		}
	}
	return all
}
