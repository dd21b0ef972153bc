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

// maxConfigSize bounds a configuration file in bytes. The largest sensible one has a few hundred rules.
const maxConfigSize = 1 << 20

// Scalar is a YAML value that can be written as a string, a number, or a boolean. It keeps the text, which is parsed
// where the value is used, so that an error can name the key. It is "" only if nothing was written.
type Scalar string

// UnmarshalJSON accepts any JSON value. A value that is not a scalar causes an error where the value is used.
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

// Parse parses a YAML configuration on top of the defaults. It is strict: a key that is unknown, duplicate, of the
// wrong type, or without a value is an error that names its path. An empty text is an error as well, since a file that
// lost its content would otherwise silently mean the defaults. A file with only comments means the defaults.
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

// repairKey returns an error that says where repair is configured now, if an invalid configuration has this former key.
func repairKey(text []byte) error {
	var former struct {
		Repair any `json:"repair"`
	}
	if yaml.Unmarshal(text, &former) != nil || former.Repair == nil {
		return nil
	}
	return errors.New("repair is not a key of the policy: remove it; to raise the memlock of running containers, " +
		"enable the rdma-spec-repair service, or set repair.enabled in the chart")
}

// Load reads a configuration file and returns its Policy. Every error names the file.
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

// LoadOr reads the named configuration file, or the node's usual one if no file is named. If that does not exist, or
// usual is "", it returns the defaults. Source says what was read.
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

// FromText returns the Policy of a configuration's text.
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
		return nil, fmt.Errorf("cannot read the configuration: %w: allow user %d, who runs this program, to read it",
			err, os.Geteuid())
	case err != nil:
		return nil, fmt.Errorf("cannot read the configuration: %w", err)
	}
	return text, nil
}

// ErrNothing means that a YAML text contains only white space and comments.
var ErrNothing = errors.New("it contains nothing")

// DecodeStrict decodes one YAML document into a value, on top of its current content. A key that is unknown, duplicate,
// of the wrong type, or without a value is an error. Errors name the path of each fault, one a line; a duplicate key is
// named by its line instead, since only the YAML parser sees both. After an error, the value is undefined.
func DecodeStrict(text []byte, into any) error {
	asJSON, err := yaml.YAMLToJSONStrict(text) // guard: key-twice, else yaml.YAMLToJSON
	if givenTwice := new(yamldocs.TypeError); errors.As(err, &givenTwice) {
		return errors.New(firstLine(err))
	}
	if err != nil { // guard: not-yaml
		return fmt.Errorf("not YAML: %s", firstLine(err))
	}
	if !oneDocument(text) { // guard: yaml-documents
		return errors.New("there is text after the end of the YAML document (a closing bracket, or a line with " +
			"--- or ..., ends it): remove this text")
	}
	var written any
	if err := json.Unmarshal(asJSON, &written); err != nil {
		return fmt.Errorf("not YAML: %s", firstLine(err))
	}
	if written == nil {
		return ErrNothing
	}
	if empty := withoutValue("", written); len(empty) > 0 { // guard: no-value
		return empty.join()
	}
	unknown, err := strictjson.UnmarshalStrict(asJSON, into, strictjson.DisallowUnknownFields)
	if len(unknown) > 0 { // guard: unknown-key
		return problems(unknown).join()
	}
	if err == nil {
		return nil
	}
	if mismatch := new(json.UnmarshalTypeError); errors.As(json.Unmarshal(asJSON, into), &mismatch) {
		place := strings.ReplaceAll(mismatch.Field, "Selectors.", "") // embedded in the types, absent from the text
		return fmt.Errorf("%s is of the type %s: expected %s", cmp.Or(place, "it"), mismatch.Value,
			expected[mismatch.Type.Kind()])
	}
	return errors.New(firstLine(err))
}

// oneDocument reports whether a YAML text contains only one document. sigs.k8s.io/yaml reads the first document,
// ignores the others, and has no decoder for several. go.yaml.in/yaml/v2 is its own parser, so it adds no dependency.
func oneDocument(text []byte) bool {
	documents := yamldocs.NewDecoder(bytes.NewReader(text))
	var content struct{}
	_ = documents.Decode(&content) // fails if the text is a list, which is reported elsewhere
	return errors.Is(documents.Decode(&content), io.EOF)
}

// withoutValue returns the keys and list elements without a value, which a decoder would treat as absent.
func withoutValue(place string, written any) (found problems) {
	switch written := written.(type) {
	case nil:
		found = problems{fmt.Errorf("%s has no value: set one, or remove the key", place)}
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

// expected describes each kind in the configuration's terms, for error messages.
var expected = map[reflect.Kind]string{
	reflect.Struct: "keys and values",
	reflect.Slice:  "a list",
	reflect.String: "text; put a value such as 16 or true in quotes, because YAML does not read it as text",
	reflect.Bool:   "true or false",
	reflect.Int:    "a whole number",
}

// firstLine returns the first line of an error's text without the libraries' prefixes.
func firstLine(err error) string {
	text := strings.TrimPrefix(err.Error(), "error converting YAML to JSON: ")
	text = strings.TrimPrefix(text, "yaml: ")
	text = strings.TrimPrefix(text, "unmarshal errors:\n")
	text = strings.TrimPrefix(text, "json: ")
	text, _, _ = strings.Cut(text, "\n")
	return strings.TrimSpace(text)
}
