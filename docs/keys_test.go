// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

// keys returns the keys of a configuration's part, and of all parts below it.
func keys(part reflect.Type) (names []string) {
	switch part.Kind() {
	case reflect.Pointer, reflect.Slice:
		return keys(part.Elem())
	case reflect.Struct:
	default:
		return nil
	}
	for field := range part.Fields() {
		if !field.Anonymous {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			names = append(names, name)
		}
		names = append(names, keys(field.Type)...)
	}
	return names
}

// TestKeysOfThePolicyHaveAPage checks that docs/configuration.md names each key of the policy. The page's defaults do not
// tell: a key that is false by default is missing in them without a difference.
func TestKeysOfThePolicyHaveAPage(t *testing.T) {
	page := repository.Read(t, "docs/configuration.md")
	all := keys(reflect.TypeFor[policy.Config]())
	if len(all) < 15 {
		t.Errorf("the policy has %d keys, want more", len(all))
	}
	for _, key := range all {
		if !regexp.MustCompile(`\b` + key + "(:|`)").MatchString(page) {
			t.Errorf("docs/configuration.md does not say what the key %q does", key)
		}
	}
}
