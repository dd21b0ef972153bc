// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

//go:embed values.schema.yaml
var ownSchema []byte

// Schema returns the text of values.schema.json: the chart's own part, and in it the configuration's schema.
func Schema(root string) ([]byte, error) {
	var schema, config map[string]any
	if err := yaml.UnmarshalStrict(ownSchema, &schema); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(root, "deploy/config.schema.json"))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return nil, err
	}
	own, ok := schema["$defs"].(map[string]any)
	theirs, alsoOK := config["$defs"].(map[string]any)
	if !ok || !alsoOK {
		return nil, fmt.Errorf("a schema has no $defs")
	}
	for _, key := range []string{"$schema", "$id", "$defs"} {
		delete(config, key)
	}
	theirs["Config"] = config
	for name, definition := range theirs {
		if _, twice := own[name]; twice {
			return nil, fmt.Errorf("both schemas define %s", name)
		}
		own[name] = definition
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err = encoder.Encode(schema)
	return out.Bytes(), err
}
