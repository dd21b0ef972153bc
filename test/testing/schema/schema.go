// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package schema makes JSON Schemas from Go types and their comments.
package schema

import (
	"strings"
	"testing"

	"github.com/invopop/jsonschema"

	"github.com/rdma-spec/rdma-spec/test/testing/must"
)

// Module is the module whose types have comments that become descriptions.
const Module = "github.com/rdma-spec/rdma-spec"

// Reflector returns a reflector that describes each type and field with its comment, and requires no field. The
// directories contain the types, or are above them. They are relative to the repository's root, which must be the
// working directory.
func Reflector(t testing.TB, dirs ...string) *jsonschema.Reflector {
	t.Helper()
	r := &jsonschema.Reflector{
		Anonymous:                  true, // no $id made of a package's path
		RequiredFromJSONSchemaTags: true, // and no field has such a tag
	}
	for _, dir := range dirs {
		before := len(r.CommentMap)
		must.Succeed(t, r.AddGoComments(Module, dir, jsonschema.WithFullComment()))
		if len(r.CommentMap) == before {
			t.Fatalf("%s has no comments", dir)
		}
	}
	for place, comment := range r.CommentMap {
		r.CommentMap[place] = strings.Join(strings.Fields(comment), " ")
	}
	return r
}
