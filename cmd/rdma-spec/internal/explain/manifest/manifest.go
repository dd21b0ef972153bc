// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package manifest reads Kubernetes manifests: what a decision of plugin/policy needs to know of their containers.
//
// It knows no kinds. A pod template is whatever has a list at spec.containers: a Pod itself, the template of a
// Deployment, each of a Volcano Job's tasks, the replicas of an MPIJob. So it can read kinds that do not exist yet, and
// does not have to follow their versions.
package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// maxSize bounds a manifest in bytes.
const maxSize = 16 << 20

// Manifest is the content of one or several YAML or JSON documents.
type Manifest struct {
	Pods []Pod
	// Problems are those that do not belong to a pod: annotations in places where they have no effect.
	Problems []string
}

// Read reads a manifest of any number of documents. The error is one line that names the document and, where it is not
// YAML, the line of the file. What is wrong inside a pod is a problem of the pod and not an error.
func Read(from io.Reader) (Manifest, error) {
	text, err := io.ReadAll(io.LimitReader(from, maxSize+1))
	switch {
	case err != nil:
		return Manifest{}, err
	case len(text) > maxSize:
		return Manifest{}, fmt.Errorf("larger than %d MiB: expected Kubernetes manifests", maxSize>>20)
	case !utf8.Valid(text): // YAML may be UTF-16, in which no document would be found but the first
		return Manifest{}, errors.New("not UTF-8: save it as UTF-8")
	}
	var m Manifest
	for d := range documents(text) {
		value, err := d.decode()
		if err != nil {
			return Manifest{}, fmt.Errorf("document %d: %w", d.number, err)
		}
		m.walk(value, "", &object{document: d.number})
	}
	return m, nil
}

// document is a YAML document of a file.
type document struct {
	number int // from 1
	line   int // how many lines of the file lie before it
	text   []byte
}

// documents splits YAML at the lines that begin a document. It leaves out documents of comments alone, of which there
// may be many.
func documents(text []byte) iter.Seq[document] {
	return func(yield func(document) bool) {
		d, begin, end, line, content := document{number: 1}, 0, 0, 0, false
		for whole := range bytes.Lines(text) {
			rest, separates := bytes.CutPrefix(whole, []byte("---"))
			if separates && (len(rest) == 0 || strings.IndexByte(" \t\r\n", rest[0]) >= 0) {
				if d.text = text[begin:end]; content && !yield(d) {
					return
				}
				if end > 0 {
					d.number++
				}
				d.line, begin, content = line, end, false
			} else {
				rest = whole
			}
			rest = bytes.TrimSpace(rest)
			content = content || len(rest) > 0 && rest[0] != '#'
			end += len(whole)
			line++
		}
		if d.text = text[begin:]; content {
			yield(d)
		}
	}
}

// decode returns a document as maps, lists and scalars.
func (d document) decode() (map[string]any, error) {
	asJSON, err := yaml.YAMLToJSONStrict(d.text)
	if err != nil {
		return nil, d.notYAML(err)
	}
	var value map[string]any
	if err := json.UnmarshalCaseSensitivePreserveInts(asJSON, &value); err != nil {
		return nil, errors.New("expected a Kubernetes object, keys and values")
	}
	return value, nil
}

// notYAML returns the first thing that the YAML parser complains of, with the line of the file.
func (d document) notYAML(err error) error {
	text := err.Error()
	for _, prefix := range []string{"error converting YAML to JSON: ", "yaml: ", "unmarshal errors:\n"} {
		text = strings.TrimPrefix(text, prefix)
	}
	text, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
	var line int
	if _, err := fmt.Sscanf(text, "line %d:", &line); err == nil {
		_, text, _ = strings.Cut(text, ":")
		text = fmt.Sprintf("line %d:%s", d.line+line, text)
	}
	return errors.New("not YAML: " + text)
}
