// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// maxConfigSize bounds a configuration file. The longest sensible one has a few hundred rules.
const maxConfigSize = 1 << 20

// Scalar is a YAML value that may be written as a string, a number or a boolean. It keeps the text; what the text means is
// told where the value is used, together with its place.
type Scalar string

// UnmarshalJSON takes any JSON value: what is no scalar is found out where the value is used.
func (s *Scalar) UnmarshalJSON(text []byte) error {
	var str string
	if err := json.Unmarshal(text, &str); err != nil {
		str = string(bytes.TrimSpace(text))
	}
	*s = Scalar(str)
	return nil
}

// Parse reads a configuration: YAML, on top of the defaults. It is strict: a key that is unknown, given twice or of another type
// is an error that names its path. An empty text is an error as well, since a file that has lost its content would
// otherwise silently become the defaults; a file with comments alone gives the defaults.
func Parse(text []byte) (Config, error) {
	if len(text) > maxConfigSize {
		return Config{}, fmt.Errorf("the configuration is larger than %d bytes", maxConfigSize)
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return Config{}, errors.New("the configuration is empty: to run with the defaults, remove the file or write `{}` into it")
	}
	config := Default()
	if err := decodeStrict(text, &config); err != nil {
		return Config{}, err
	}
	return config, nil
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

// FromText makes the Policy of a configuration's text.
func FromText(text []byte) (*Policy, error) {
	config, err := Parse(text)
	if err != nil {
		return nil, err
	}
	return New(config)
}

func readFile(file string) ([]byte, error) {
	info, err := os.Stat(file)
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot read the configuration: %w", err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no regular file: expected the configuration, YAML", file)
	case info.Size() > maxConfigSize:
		return nil, fmt.Errorf("%s is larger than %d bytes: expected the configuration, YAML", file, maxConfigSize)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read the configuration: %w", err)
	}
	return text, nil
}

// decodeStrict reads YAML into a value on top of what it holds. Errors name the path of what is wrong.
func decodeStrict(text []byte, into any) error {
	asJSON, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return fmt.Errorf("not YAML: %s", firstLine(err))
	}
	if bytes.Equal(bytes.TrimSpace(asJSON), []byte("null")) {
		return nil
	}
	strict, err := kjson.UnmarshalStrict(asJSON, into)
	if err == nil && len(strict) > 0 {
		err = strict[0]
	}
	if err == nil {
		return nil
	}
	var wrongType *json.UnmarshalTypeError
	if errors.As(err, &wrongType) && wrongType.Field != "" {
		return fmt.Errorf("%s is a %s: expected %s", wrongType.Field, wrongType.Value, typeName(wrongType.Type.Kind().String()))
	}
	if errors.As(err, &wrongType) {
		return fmt.Errorf("it is a %s: expected keys and values", wrongType.Value)
	}
	return errors.New(firstLine(err))
}

func typeName(kind string) string {
	switch kind {
	case "slice":
		return "a list"
	case "struct", "map", "ptr":
		return "keys and values"
	case "bool":
		return "true or false"
	case "int":
		return "a number"
	default:
		return "a " + kind
	}
}

// firstLine gives an error's text without the libraries' prefixes, on one line.
func firstLine(err error) string {
	text := strings.TrimPrefix(err.Error(), "error converting YAML to JSON: ")
	text = strings.TrimPrefix(text, "yaml: ")
	text = strings.TrimPrefix(text, "unmarshal errors:\n")
	text, _, _ = strings.Cut(text, "\n")
	return strings.TrimSpace(text)
}
