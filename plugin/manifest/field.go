// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"
)

// field is a value in a manifest and its place. What is missing or null is the field with the value nil, which reads as nothing;
// a value of another type than is asked for is a problem, and reads as nothing as well.
type field struct {
	value    any
	path     string
	problems *[]string
}

// kindOf gives a value's type for people.
func kindOf(value any) string {
	switch value.(type) {
	case map[string]any:
		return "keys and values"
	case []any:
		return "a list"
	case string:
		return "a string"
	case json.Number:
		return "a number"
	case bool:
		return "true or false"
	}
	return "nothing"
}

func (f field) report(format string, args ...any) {
	if f.problems != nil {
		*f.problems = append(*f.problems, f.path+" "+fmt.Sprintf(format, args...))
	}
}

func (f field) wrongType(want string) {
	if f.value != nil {
		f.report("is %s: expected %s", kindOf(f.value), want)
	}
}

// get gives what stands at a key.
func (f field) get(key string) field {
	mapping, ok := f.value.(map[string]any)
	if !ok {
		f.wrongType("keys and values")
	}
	return field{mapping[key], join(f.path, key), f.problems}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// keys gives the keys, sorted.
func (f field) keys() []string {
	mapping, ok := f.value.(map[string]any)
	if !ok {
		f.wrongType("keys and values")
	}
	return slices.Sorted(maps.Keys(mapping))
}

// list gives the elements.
func (f field) list() []field {
	elements, ok := f.value.([]any)
	if !ok {
		f.wrongType("a list")
	}
	fields := make([]field, len(elements))
	for i, e := range elements {
		fields[i] = field{e, f.path + "[" + strconv.Itoa(i) + "]", f.problems}
	}
	return fields
}

func (f field) text() string {
	s, ok := f.value.(string)
	if !ok {
		f.wrongType("a string")
	}
	return s
}

// texts gives the elements of a list of strings.
func (f field) texts() []string {
	var all []string
	for _, e := range f.list() {
		all = append(all, e.text())
	}
	return all
}

func (f field) boolean() bool {
	b, ok := f.value.(bool)
	if !ok {
		f.wrongType("true or false")
	}
	return b
}

// strings gives the keys and values of labels or annotations. Kubernetes refuses values that are no strings, as true without quotes;
// what was meant is taken all the same, so that the rest can be explained.
func (f field) strings() map[string]string {
	out := map[string]string{}
	for _, key := range f.keys() {
		value := f.get(key).value
		text, ok := value.(string)
		if !ok && value != nil {
			text = fmt.Sprint(value)
			f.report("has for %s %s: Kubernetes takes strings only: write it in quotes", key, kindOf(value))
		}
		out[key] = text
	}
	return out
}

// quantity gives an amount in whole units, 0 where there is none.
func (f field) quantity() int64 {
	var text string
	switch v := f.value.(type) {
	case string:
		text = v
	case json.Number:
		text = v.String()
	default:
		f.wrongType("a quantity such as 16Gi")
		return 0
	}
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Sign() < 0 {
		f.report("is no quantity such as 16Gi")
		return 0
	}
	return q.Value()
}
