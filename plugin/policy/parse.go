// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// maxConfigSize bounds a configuration file. The longest sensible one has a few hundred rules.
const maxConfigSize = 1 << 20

// Scalar is a YAML value that may be written as a string, a number or a boolean. It keeps the text; what the text means is
// told where the value is used, together with its place. It is "" only where nothing was written.
type Scalar string

// UnmarshalJSON takes any JSON value: what is no scalar is found out where the value is used.
func (s *Scalar) UnmarshalJSON(text []byte) error {
	var str string
	if err := json.Unmarshal(text, &str); err != nil || str == "" {
		str = string(bytes.TrimSpace(text))
	}
	*s = Scalar(str)
	return nil
}

// Parse reads a configuration: YAML, on top of the defaults. It is strict: a key that is unknown, given twice, of another type or
// without a value is an error that names its path. An empty text is an error as well, since a file that has lost its content
// would otherwise silently become the defaults; a file with comments alone gives the defaults.
func Parse(text []byte) (Config, error) {
	if len(text) > maxConfigSize {
		return Config{}, fmt.Errorf("the configuration is larger than %d bytes", maxConfigSize)
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return Config{}, errors.New("the configuration is empty: to run with the defaults, remove the file or write `{}` into it")
	}
	config := Default()
	if err := decodeStrict(text, &config); err != nil && !errors.Is(err, errNothing) {
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
