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

// maxConfigSize is the maximum size of a configuration file in bytes. Even the largest useful configuration has only a
// few hundred rules.
const maxConfigSize = 1 << 20

// Scalar is the text of a YAML value that can be a string, a number, or a boolean. The code that uses the value parses
// the text, so that an error can contain the key. A Scalar is "" only if the value is missing.
type Scalar string

// UnmarshalJSON accepts any JSON value. If the value is not a scalar, the code that uses the value returns an error.
func (s *Scalar) UnmarshalJSON(text []byte) error {
	var str string
	if err := json.Unmarshal(text, &str); err != nil || str == "" {
		str = string(bytes.TrimSpace(text))
	}
	*s = Scalar(str)
	return nil
}

// MarshalJSON writes true and false as booleans, and all other values as text.
func (s Scalar) MarshalJSON() ([]byte, error) {
	if s == "true" || s == "false" {
		return []byte(s), nil
	}
	return json.Marshal(string(s))
}

// Parse parses a YAML configuration. Omitted keys keep their defaults. A key that is unknown, is a duplicate, has the
// wrong type, or has no value causes an error that contains the path of the key. An empty text also causes an error,
// because a file that lost its content must not silently mean the defaults. A file that contains only comments means
// the defaults.
func Parse(text []byte) (Config, error) {
	if len(text) > maxConfigSize {
		return Config{}, fmt.Errorf("the configuration is larger than %d bytes", maxConfigSize)
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return Config{}, errors.New("the configuration is empty: to use the defaults, remove the file, or write `{}` to it")
	}
	config := Default()
	if err := DecodeStrict(text, &config); err != nil && !errors.Is(err, ErrNothing) {
		return Config{}, cmp.Or(repairKey(text), err)
	}
	return config, nil
}

// repairKey returns an error if an invalid configuration contains the former key repair. The error explains where to
// configure repair instead.
func repairKey(text []byte) error {
	var former struct {
		Repair any `json:"repair"`
	}
	if yaml.Unmarshal(text, &former) != nil || former.Repair == nil {
		return nil
	}
	return errors.New("repair is not a key of the policy: remove the key, and then either enable the " +
		"rdma-spec-repair service or set repair.enabled in the chart")
}

// Load reads a configuration file and returns its Policy. Each error contains the file's path.
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

// LoadOr reads the configuration file whose path is given. If file is "", LoadOr reads the usual file of the node. If
// the usual file does not exist, or usual is "", LoadOr returns the default configuration. The result source is the
// path of the file that was read, or defaults.
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

// FromText returns the Policy for the text of a configuration.
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
		return nil, fmt.Errorf("cannot read the configuration: %w: allow user %d, who runs this program, to read the file",
			err, os.Geteuid())
	case err != nil:
		return nil, fmt.Errorf("cannot read the configuration: %w", err)
	}
	return text, nil
}

// ErrNothing means that a YAML text contains only white space and comments.
var ErrNothing = errors.New("the YAML text contains no values")

// DecodeStrict decodes one YAML document into a value. Omitted keys keep their current content. A key that is unknown,
// is a duplicate, has the wrong type, or has no value causes an error. The error contains a line for each fault, with
// the path of the key. For a duplicate key, the error contains the line number instead of the path, because only the
// YAML parser detects duplicate keys. After an error, the value is undefined.
func DecodeStrict(text []byte, into any) error {
	asJSON, err := yaml.YAMLToJSONStrict(text) // guard: key-twice, else yaml.YAMLToJSON
	if givenTwice := new(yamldocs.TypeError); errors.As(err, &givenTwice) {
		return errors.New(firstLine(err))
	}
	if err != nil { // guard: not-yaml
		return fmt.Errorf("not YAML: %s", firstLine(err))
	}
	if !oneDocument(text) { // guard: yaml-documents
		return errors.New("there is text after the end of the YAML document: remove this text (a closing bracket, " +
			"or a line with --- or ..., ends the document)")
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
		place := strings.ReplaceAll(mismatch.Field, "Selectors.", "") // an embedded type, whose name is not in the text
		return fmt.Errorf("%s has the type %s: expected %s", cmp.Or(place, "the YAML text"), mismatch.Value,
			expected[mismatch.Type.Kind()])
	}
	return errors.New(firstLine(err))
}

// oneDocument reports whether a YAML text contains only one document. sigs.k8s.io/yaml reads only the first document,
// and has no decoder for several documents. sigs.k8s.io/yaml itself uses go.yaml.in/yaml/v2, so this package adds no
// dependency.
func oneDocument(text []byte) bool {
	documents := yamldocs.NewDecoder(bytes.NewReader(text))
	var content struct{}
	_ = documents.Decode(&content) // fails if the text is a list; DecodeStrict reports this error
	return errors.Is(documents.Decode(&content), io.EOF)
}

// withoutValue returns the keys and list elements without a value, which a decoder would treat as absent.
func withoutValue(place string, written any) (found problems) {
	switch written := written.(type) {
	case nil:
		found = problems{fmt.Errorf("%s has no value: set a value, or remove the key", place)}
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

// expected describes each kind of value in the configuration's terms, for error messages.
var expected = map[reflect.Kind]string{
	reflect.Struct: "keys and values",
	reflect.Slice:  "a list",
	reflect.String: "text (put values such as 16 and true in quotes; otherwise, YAML does not read them as text)",
	reflect.Bool:   "true or false",
	reflect.Int:    "a whole number",
}

// firstLine returns the first line of an error's text, without the prefixes that libraries add.
func firstLine(err error) string {
	text := strings.TrimPrefix(err.Error(), "error converting YAML to JSON: ")
	text = strings.TrimPrefix(text, "yaml: ")
	text = strings.TrimPrefix(text, "unmarshal errors:\n")
	text = strings.TrimPrefix(text, "json: ")
	text, _, _ = strings.Cut(text, "\n")
	return strings.TrimSpace(text)
}
