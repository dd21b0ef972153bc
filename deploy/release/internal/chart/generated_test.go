// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"helm.sh/helm/v4/pkg/chart/v2/loader"

	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

const root = "../../../.."

// TestGenerated checks that the plain manifests are what the chart renders, that the schema has the configuration's,
// and that the README has all values.
func TestGenerated(t *testing.T) {
	golden.Compare(t, filepath.Join(root, Dir, "values.schema.json"), valuesSchema(t))
	golden.Compare(t, filepath.Join(root, readme), table.ReplaceAllLiteralString(read(t, readme), valuesTable(t)))
	for file, text := range plain(t) {
		golden.Compare(t, filepath.Join(root, "deploy", file), text)
	}
}

// TestPackage checks that a package has the release's image, where registries of charts look for it.
func TestPackage(t *testing.T) {
	file, err := Package(root, scratch.Dir(t), "1.2.3", "v1.2.3", time.Unix(1_700_000_000, 0))
	if err != nil {
		t.Fatal(err)
	}
	c, err := loader.LoadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	images := c.Metadata.Annotations["artifacthub.io/images"]
	if !strings.Contains(images, "image: "+fmt.Sprint(c.Values["image"].(Values)["repository"])+":v1.2.3\n") {
		t.Errorf("the package names the images\n%s", images)
	}
}

// valuesSchema returns the text of values.schema.json: the chart's own part, and in it the configuration's schema.
func valuesSchema(t *testing.T) string {
	t.Helper()
	var schema, config map[string]any
	decode(t, read(t, "deploy/release/internal/chart/values.schema.yaml"), &schema)
	if err := json.Unmarshal([]byte(read(t, "deploy/config.schema.json")), &config); err != nil {
		t.Fatal(err)
	}
	own, theirs := schema["$defs"].(map[string]any), config["$defs"].(map[string]any)
	for _, key := range []string{"$schema", "$id", "$defs"} {
		delete(config, key)
	}
	theirs["Config"] = config
	for name, definition := range theirs {
		if _, twice := own[name]; twice {
			t.Fatalf("both schemas define %s", name)
		}
		own[name] = definition
	}
	return golden.JSON(t, schema)
}

// readme is the chart's page in registries of charts, with a table of its values.
const readme = Dir + "/README.md"

var table = regexp.MustCompile(`(?s)\| value \| default \| .*\|\n`)

// valuesTable returns the table of all values: each with its default, and with the comment above it in values.yaml.
// What a value has in it has its place there too, but for the plugin's configuration, which has a page of its own.
func valuesTable(t *testing.T) string {
	t.Helper()
	var document yaml.Node
	if err := yaml.Unmarshal([]byte(read(t, Dir+"/values.yaml")), &document); err != nil {
		t.Fatal(err)
	}
	rows := "| value | default | description |\n|---|---|---|\n"
	var add func(prefix string, mapping *yaml.Node)
	add = func(prefix string, mapping *yaml.Node) {
		for i := 0; i < len(mapping.Content); i += 2 {
			key, value := mapping.Content[i], mapping.Content[i+1]
			name, nested := prefix+key.Value, value.Kind == yaml.MappingNode && len(value.Content) > 0
			shown := ""
			if !nested {
				var decoded any
				if err := value.Decode(&decoded); err != nil {
					t.Fatal(err)
				}
				text, err := json.Marshal(decoded)
				if err != nil {
					t.Fatal(err)
				}
				shown = "`" + string(text) + "`"
			}
			if name == "config" || name == "resources" {
				nested, shown = false, "see values.yaml"
			}
			if said := comment(key, value); said != "" || !nested {
				rows += fmt.Sprintf("| `%s` | %s | %s |\n", name, shown, said)
			}
			if nested {
				add(name+".", value)
			}
		}
	}
	add("", document.Content[0])
	return rows
}

// comment returns the last paragraph above a key and what is beside it, as one line of a table.
func comment(key, value *yaml.Node) string {
	above := key.HeadComment[strings.LastIndex("\n\n"+key.HeadComment, "\n\n"):]
	text := regexp.MustCompile(`(?m)^# ?`).ReplaceAllString(above+"\n"+value.LineComment, "")
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`)
}
