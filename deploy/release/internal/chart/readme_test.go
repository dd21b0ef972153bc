// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// readme is the chart's page in registries of charts, with a table of its values.
const readme = Folder + "/README.md"

var table = regexp.MustCompile(`(?s)\| value \| default \| .*\|\n`)

// valuesTable returns the table of all values: each with its default, and with the comment above it in values.yaml.
// What a value has in it has its place there too, but for the plugin's configuration, which has a page of its own.
func valuesTable(t *testing.T) string {
	t.Helper()
	var document yaml.Node
	if err := yaml.Unmarshal([]byte(read(t, Folder+"/values.yaml")), &document); err != nil {
		t.Fatal(err)
	}
	rows := "| value | default | what it is |\n|---|---|---|\n"
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
