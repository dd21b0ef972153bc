// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	yamldocs "go.yaml.in/yaml/v2"
	strictjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// maxConfigSize bounds a configuration file. The longest sensible one has a few hundred rules.
const maxConfigSize = 1 << 20

// Scalar is a YAML value that may be written as a string, a number or a boolean. It keeps the text, which is read where
// the value is used, so that an error can name the place. It is "" only where nothing was written.
type Scalar string

// UnmarshalJSON accepts any JSON value: a value that is not a scalar is an error where the value is used.
func (s *Scalar) UnmarshalJSON(text []byte) error {
	var str string
	if err := json.Unmarshal(text, &str); err != nil || str == "" {
		str = string(bytes.TrimSpace(text))
	}
	*s = Scalar(str)
	return nil
}

// MarshalJSON writes true and false as booleans, and everything else as text.
func (s Scalar) MarshalJSON() ([]byte, error) {
	if s == "true" || s == "false" {
		return []byte(s), nil
	}
	return json.Marshal(string(s))
}

// Parse reads a configuration: YAML, on top of the defaults. It is strict: a key that is unknown, given twice, of
// another type or without a value is an error that names its path. An empty text is an error as well, since a file that
// has lost its content would otherwise silently become the defaults. A file with only comments gives the defaults.
func Parse(text []byte) (Config, error) {
	if len(text) > maxConfigSize {
		return Config{}, fmt.Errorf("the configuration is larger than %d bytes", maxConfigSize)
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return Config{}, errors.New("the configuration is empty: to use the defaults, remove the file or write `{}` to it")
	}
	config := Default()
	if err := DecodeStrict(text, &config); err != nil && !errors.Is(err, ErrNothing) {
		return Config{}, cmp.Or(repairKey(text), err)
	}
	return config, nil
}

// repairKey says where repair is now, if a configuration that cannot be read has a key for it.
func repairKey(text []byte) error {
	var former struct {
		Repair any `json:"repair"`
	}
	if yaml.Unmarshal(text, &former) != nil || former.Repair == nil {
		return nil
	}
	return errors.New("repair is not a key of the policy: remove it; to raise running containers, enable the " +
		"service rdma-spec-repair, or repair.enabled in the chart")
}

// Load reads a configuration file and makes its Policy. Every error names the file.
func Load(file string) (*Policy, error) {
	text, err := readFile(file)
	if err != nil {
		return nil, err
	}
	p, err := FromText(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return p, nil
}

// LoadOr reads a configuration file, else the usual one of a node if that exists, else it takes the defaults. Where no
// file is named, and usual is "", the defaults are it. Source is what was read.
func LoadOr(file, usual string) (p *Policy, source string, err error) {
	source = cmp.Or(file, usual)
	if source != "" {
		p, err = Load(source)
	}
	if file == "" && (usual == "" || errors.Is(err, fs.ErrNotExist)) {
		p, err = New(Default())
		return p, "defaults", err
	}
	return p, source, err
}

// FromText makes the Policy of a configuration's text.
func FromText(text []byte) (*Policy, error) {
	config, err := Parse(text)
	if err != nil {
		return nil, err
	}
	p, err := New(config)
	if err == nil {
		p.text = text
	}
	return p, err
}

func readFile(file string) ([]byte, error) {
	info, err := os.Stat(file)
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot read the configuration: %w", err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file: expected a YAML configuration", file)
	case info.Size() > maxConfigSize:
		return nil, fmt.Errorf("%s is larger than %d bytes: expected a YAML configuration", file, maxConfigSize)
	}
	text, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("cannot read the configuration: %w: allow user %d, who runs this, to read "+
			"it", err, os.Geteuid())
	case err != nil:
		return nil, fmt.Errorf("cannot read the configuration: %w", err)
	}
	return text, nil
}

// ErrNothing reports that a YAML text has nothing but white space and comments in it.
var ErrNothing = errors.New("it contains nothing")

// DecodeStrict reads YAML into a value on top of what it holds: one document, without a key that is unknown, given
// twice, of another type, or without a value. Errors name the path of what is wrong, one a line; a key given twice is
// named by its line, since only the YAML parser ever sees both. With an error, the value is of no use.
func DecodeStrict(text []byte, into any) error {
	asJSON, err := yaml.YAMLToJSONStrict(text) // guard: key-twice, else yaml.YAMLToJSON
	if givenTwice := new(yamldocs.TypeError); errors.As(err, &givenTwice) {
		return errors.New(firstLine(err))
	}
	if err != nil { // guard: not-yaml
		return fmt.Errorf("not YAML: %s", firstLine(err))
	}
	if !oneDocument(text) { // guard: yaml-documents
		return errors.New("there is text after the end of the YAML document (---, ..., or a closing bracket): " +
			"remove it")
	}
	var written any
	if err := json.Unmarshal(asJSON, &written); err != nil {
		return fmt.Errorf("not YAML: %s", firstLine(err))
	}
	if written == nil {
		return ErrNothing
	}
	if empty := withoutValue("", written); len(empty) > 0 { // guard: no-value
		return empty.together()
	}
	unknown, err := strictjson.UnmarshalStrict(asJSON, into, strictjson.DisallowUnknownFields)
	if len(unknown) > 0 { // guard: unknown-key
		return problems(unknown).together()
	}
	if err == nil {
		return nil
	}
	if mismatch := new(json.UnmarshalTypeError); errors.As(json.Unmarshal(asJSON, into), &mismatch) {
		place := strings.ReplaceAll(mismatch.Field, "Selectors.", "") // embedded in the types, not in the text
		return fmt.Errorf("%s is of the type %s: expected %s", cmp.Or(place, "it"), mismatch.Value,
			expected[mismatch.Type.Kind()])
	}
	return errors.New(firstLine(err))
}

// oneDocument reports whether nothing follows a YAML text's first document. sigs.k8s.io/yaml reads the first one and
// drops the rest, and has no decoder that goes on: go.yaml.in/yaml/v2 is the parser below it, and no second one.
func oneDocument(text []byte) bool {
	documents := yamldocs.NewDecoder(bytes.NewReader(text))
	var content struct{}
	_ = documents.Decode(&content) // which fails where the text is a list, and that is found elsewhere
	return errors.Is(documents.Decode(&content), io.EOF)
}

// withoutValue finds the keys and list elements that have no value, which a decoder would treat as absent.
func withoutValue(place string, written any) (found problems) {
	switch written := written.(type) {
	case nil:
		found = problems{fmt.Errorf("%s has no value: give it one, or remove it", place)}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(written)) {
			at := strings.TrimPrefix(place+"."+strings.Trim(quoted(key), `"`), ".")
			found = append(found, withoutValue(at, written[key])...)
		}
	case []any:
		for i, element := range written {
			found = append(found, withoutValue(fmt.Sprintf("%s[%d]", place, i), element)...)
		}
	}
	return found
}

// expected names kinds for the person who wrote something else.
var expected = map[reflect.Kind]string{
	reflect.Struct: "keys and values",
	reflect.Slice:  "a list",
	reflect.String: "text, in quotes if it looks like something else",
	reflect.Bool:   "true or false",
	reflect.Int:    "a whole number",
}

// firstLine returns an error's text without the libraries' prefixes, on one line.
func firstLine(err error) string {
	text := strings.TrimPrefix(err.Error(), "error converting YAML to JSON: ")
	text = strings.TrimPrefix(text, "yaml: ")
	text = strings.TrimPrefix(text, "unmarshal errors:\n")
	text = strings.TrimPrefix(text, "json: ")
	text, _, _ = strings.Cut(text, "\n")
	return strings.TrimSpace(text)
}
