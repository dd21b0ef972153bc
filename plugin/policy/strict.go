// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	yamldocs "go.yaml.in/yaml/v2"
	"sigs.k8s.io/yaml"
)

// errNothing says that a YAML text has nothing but white space and comments in it.
var errNothing = errors.New("it says nothing")

// decodeStrict reads YAML into a value on top of what it holds: one document, without a key that is unknown, given twice, of another
// type, or has no value. Errors name the path of what is wrong, one a line. Keys given twice are named by their line, since nothing
// but the YAML parser ever sees both.
func decodeStrict(text []byte, into any) error {
	asJSON, err := yaml.YAMLToJSONStrict(text) // guard: key-twice, else yaml.YAMLToJSON
	if givenTwice := new(yamldocs.TypeError); errors.As(err, &givenTwice) {
		return errors.New(firstLine(err))
	}
	if err != nil { // guard: not-yaml
		return fmt.Errorf("not YAML: %s", firstLine(err))
	}
	if !oneDocument(text) { // guard: yaml-documents
		return errors.New("something follows the end of the YAML document, after ---, ... or a closing bracket: remove it")
	}
	var written any
	numbersAsText := json.NewDecoder(bytes.NewReader(asJSON))
	numbersAsText.UseNumber()
	if err := numbersAsText.Decode(&written); err != nil {
		return fmt.Errorf("not YAML: %s", firstLine(err))
	}
	if written == nil {
		return errNothing
	}
	if err := mismatches("", written, reflect.TypeOf(into).Elem()).together(); err != nil {
		return err
	}
	return json.Unmarshal(asJSON, into)
}

// oneDocument says that nothing follows a YAML text's first document. The YAML library reads the first one and drops the rest.
func oneDocument(text []byte) bool {
	documents := yamldocs.NewDecoder(bytes.NewReader(text))
	var content struct{}
	if errors.Is(documents.Decode(&content), io.EOF) {
		return true
	}
	return errors.Is(documents.Decode(&content), io.EOF)
}

// mismatches compares what was written at a place with the type that it is for. Types that read themselves are left to that.
func mismatches(place string, written any, want reflect.Type) problems {
	if written == nil { // guard: no-value
		return problems{fmt.Errorf("%s has no value: give it one, or remove it", place)}
	}
	if reflect.PointerTo(want).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return nil
	}
	switch want.Kind() {
	case reflect.Pointer:
		return mismatches(place, written, want.Elem())
	case reflect.Struct:
		if members, ok := written.(map[string]any); ok {
			return keyMismatches(place, members, want)
		}
	case reflect.Map:
		if members, ok := written.(map[string]any); ok {
			var found problems
			for _, key := range slices.Sorted(maps.Keys(members)) {
				found = append(found, mismatches(join(place, key), members[key], want.Elem())...)
			}
			return found
		}
	case reflect.Slice:
		if elements, ok := written.([]any); ok {
			var found problems
			for i, element := range elements {
				found = append(found, mismatches(fmt.Sprintf("%s[%d]", place, i), element, want.Elem())...)
			}
			return found
		}
	case reflect.Int:
		if n, ok := written.(json.Number); ok && isInt(n) {
			return nil
		}
	default:
		if reflect.TypeOf(written).Kind() == want.Kind() && reflect.TypeOf(written) != reflect.TypeFor[json.Number]() {
			return nil
		}
	}
	return problems{fmt.Errorf("%s is %s: expected %s", orIt(place), describe(written), expected[want.Kind()])}
}

// keyMismatches compares the keys that were written at a place with a struct's.
func keyMismatches(place string, members map[string]any, want reflect.Type) problems {
	fields, names := map[string]reflect.Type{}, []string{}
	for i := range want.NumField() {
		name, _, _ := strings.Cut(want.Field(i).Tag.Get("json"), ",")
		fields[name], names = want.Field(i).Type, append(names, name)
	}
	var found problems
	for _, key := range slices.Sorted(maps.Keys(members)) {
		field, known := fields[key]
		if !known { // guard: unknown-key
			found = append(found, fmt.Errorf("unknown field %s: expected %s", strconv.Quote(join(place, key)), strings.Join(names, ", ")))
			continue
		}
		found = append(found, mismatches(join(place, key), members[key], field)...)
	}
	return found
}

func isInt(n json.Number) bool {
	_, err := strconv.Atoi(n.String())
	return err == nil
}

// expected names kinds for the person who wrote something else.
var expected = map[reflect.Kind]string{
	reflect.Struct: "keys and values",
	reflect.Map:    "keys and values",
	reflect.Slice:  "a list",
	reflect.String: "text, in quotes if it looks like something else",
	reflect.Bool:   "true or false",
	reflect.Int:    "a whole number",
}

func describe(written any) string {
	switch v := written.(type) {
	case map[string]any:
		return "keys and values"
	case []any:
		return "a list"
	case string:
		return "the text " + quoted(v)
	default:
		return fmt.Sprint(v)
	}
}

var plainKey = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// join gives the path of a key. Keys that would not look like one are quoted.
func join(place, key string) string {
	if !plainKey.MatchString(key) {
		key = quoted(key)
	}
	if place == "" {
		return key
	}
	return place + "." + key
}

func orIt(place string) string {
	if place == "" {
		return "it"
	}
	return place
}

// firstLine gives an error's text without the libraries' prefixes, on one line.
func firstLine(err error) string {
	text := strings.TrimPrefix(err.Error(), "error converting YAML to JSON: ")
	text = strings.TrimPrefix(text, "yaml: ")
	text = strings.TrimPrefix(text, "unmarshal errors:\n")
	text = strings.TrimPrefix(text, "json: ")
	text, _, _ = strings.Cut(text, "\n")
	return strings.TrimSpace(text)
}
