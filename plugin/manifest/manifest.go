// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package manifest reads Kubernetes manifests: what they say of containers, as far as a decision of plugin/policy depends on it.
//
// It knows no kinds. A pod template is whatever has a list at spec.containers: a Pod itself, the template of a Deployment, each of
// a Volcano Job's tasks, the replicas of an MPIJob. So it can read kinds that nobody has thought of yet, and nothing here has
// to follow their versions.
//
// It lies beside the plugin and not in the tool that prints what it finds, so that a test can compare it with what the plugin sees.
package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"sigs.k8s.io/yaml"
)

// maxSize bounds a manifest in bytes.
const maxSize = 16 << 20

// Manifest is what one or several YAML or JSON documents say.
type Manifest struct {
	Pods []Pod
	// Problems are those that belong to no pod: annotations where nobody reads them.
	Problems []string
}

// Read reads a manifest of any number of documents. The error is one line that names the document and, where it is no YAML, the
// line of the file. What is wrong inside a pod is a problem of the pod, and no error.
func Read(from io.Reader) (Manifest, error) {
	text, err := io.ReadAll(io.LimitReader(from, maxSize+1))
	switch {
	case err != nil:
		return Manifest{}, err
	case len(text) > maxSize:
		return Manifest{}, fmt.Errorf("larger than %d MiB: expected Kubernetes manifests", maxSize>>20)
	}
	var m Manifest
	for i, document := range documents(text) {
		value, err := decode(document)
		if err != nil {
			return Manifest{}, fmt.Errorf("document %d: %w", i+1, err)
		}
		f := finder{document: i + 1}
		f.walk(field{value: value}, object{})
		m.Pods = append(m.Pods, f.pods...)
		m.Problems = append(m.Problems, f.misplaced()...)
	}
	return m, nil
}

// documents splits YAML at the lines that begin a document. Each keeps its place in the file, so that errors name lines of the file.
func documents(text []byte) [][]byte {
	var all [][]byte
	var current []byte
	lines := 0
	begin := func() {
		if len(bytes.TrimSpace(current)) > 0 {
			all = append(all, current)
		}
		current = bytes.Repeat([]byte{'\n'}, lines)
	}
	for line := range bytes.Lines(text) {
		rest, separator := bytes.CutPrefix(line, []byte("---"))
		if separator && bytes.IndexAny(rest, " \t\r\n") <= 0 {
			begin()
		}
		current = append(current, line...)
		lines++
	}
	begin()
	return all
}

// decode gives a document as maps, lists and scalars; numbers keep their text.
func decode(document []byte) (any, error) {
	asJSON, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return nil, errors.New(firstLine(err))
	}
	decoder := json.NewDecoder(bytes.NewReader(asJSON))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, errors.New(firstLine(err))
	}
	switch value.(type) {
	case map[string]any, nil:
		return value, nil
	}
	return nil, fmt.Errorf("it is %s: expected a Kubernetes object, keys and values", kindOf(value))
}

// firstLine gives the first thing that a YAML parser complains of, without its prefixes.
func firstLine(err error) string {
	text := err.Error()
	for _, prefix := range []string{"error converting YAML to JSON: ", "yaml: ", "unmarshal errors:\n"} {
		text = strings.TrimPrefix(text, prefix)
	}
	text, _, _ = strings.Cut(text, "\n")
	return "no YAML: " + strings.TrimSpace(text)
}
