// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

// object is a part of a JSON schema.
type object struct {
	Properties map[string]*object
	Items      *object
	Defs       map[string]*object `json:"$defs"`
}

// keys returns the names of all properties of a schema.
func (o *object) keys() []string {
	if o == nil {
		return nil
	}
	names := o.Items.keys()
	for name, property := range o.Properties {
		names = append(append(names, name), property.keys()...)
	}
	for _, def := range o.Defs {
		names = append(names, def.keys()...)
	}
	return names
}

// TestKeysOfThePolicyHaveAPage checks that docs/configuration.md names each key of the policy. The page's defaults do not
// tell: a key that is false by default is missing in them without a difference.
func TestKeysOfThePolicyHaveAPage(t *testing.T) {
	var schema object
	if err := json.Unmarshal([]byte(repository.Read(t, "deploy/config.schema.json")), &schema); err != nil {
		t.Fatal(err)
	}
	page, all := repository.Read(t, "docs/configuration.md"), map[string]bool{}
	for _, key := range schema.keys() {
		all[key] = true
	}
	if len(all) < 15 {
		t.Errorf("the schema has %d keys, want more", len(all))
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if !regexp.MustCompile(`\b` + key + "(:|`)").MatchString(page) {
			t.Errorf("docs/configuration.md does not say what the key %q does", key)
		}
	}
}
