// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package manifest reads Kubernetes manifests, and returns the facts about their containers on which the decisions of
// package policy depend.
//
// The package does not depend on the kinds of objects. Every object with containers is a pod spec, and every object
// with a pod spec at its key spec is a pod template. Examples are a Pod itself, the template of a Deployment, each task
// of a Volcano Job, and the replicas of an MPIJob. Therefore, the package can read unknown kinds and all versions.
package manifest

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

// maxSize is the maximum size of a manifest in bytes.
const maxSize = 16 << 20

// Manifest is the content of one or several YAML or JSON documents.
type Manifest struct {
	Pods []Pod
	// Problems are the problems outside pods: annotations in places where they have no effect.
	Problems []string
	// Unexplained lists values that might create RDMA containers but cannot be read as a pod, each with the reason.
	Unexplained []string
}

// Read reads a manifest with any number of documents. An error is one line with the number of the document and, for
// invalid YAML, the line number in the file. A mistake inside a pod is a problem of the pod, not an error.
func Read(from io.Reader) (Manifest, error) {
	text, err := io.ReadAll(io.LimitReader(from, maxSize+1))
	switch {
	case err != nil:
		return Manifest{}, err
	case len(text) > maxSize:
		return Manifest{}, fmt.Errorf("expected Kubernetes manifests, but the text is larger than %d MiB", maxSize>>20)
	case !utf8.Valid(text): // YAML can be UTF-16, in which only the first document would be found
		return Manifest{}, errors.New("the manifest is not UTF-8: save the file as UTF-8")
	}
	var m Manifest
	d := document{number: 1}
	begin := 0
	end := 0
	line := 0
	content := false
	for whole := range bytes.Lines(slices.Concat(text, []byte("\n---"))) {
		rest := whole
		if isMarker(whole) {
			d.text = text[begin:min(end, len(text))]
			if content {
				objects, err := d.decode()
				if err != nil {
					return Manifest{}, fmt.Errorf("document %d: %w", d.number, err)
				}
				for i, value := range objects {
					m.walk(value, place{object: &object{document: d.number + i, name: "(no kind)"}})
				}
			}
			if end > 0 && whole[0] == '-' {
				d.number++
			}
			d.line = line
			begin = end + 3
			content = false
			rest = rest[3:]
		}
		rest = bytes.TrimSpace(rest)
		content = content || len(rest) > 0 && rest[0] != '#' && rest[0] != '%' // neither a comment nor a directive
		end += len(whole)
		line++
	}
	return m, nil
}

// isMarker reports whether a line begins or ends a document.
func isMarker(line []byte) bool {
	return (bytes.HasPrefix(line, []byte("---")) || bytes.HasPrefix(line, []byte("..."))) &&
		(len(line) == 3 || bytes.IndexByte([]byte(" \t\r\n"), line[3]) >= 0)
}

// document is the text between two markers: a YAML document, or a sequence of JSON values.
type document struct {
	number int // from 1
	line   int // the number of lines before the document
	text   []byte
}

// decode returns the objects of a document.
func (d document) decode() ([]map[string]any, error) {
	row, err := objects(d.text)
	switch {
	case len(row) > 0 && err != nil:
		return nil, fmt.Errorf("not JSON: %w", err)
	case len(row) > 1:
		return row, nil
	}
	asJSON, err := yaml.YAMLToJSONStrict(d.text)
	if err != nil {
		return nil, d.notYAML(err)
	}
	if row, err = objects(asJSON); err != nil {
		return nil, errors.New("expected a Kubernetes object")
	}
	return row, nil
}

// objects returns a sequence of objects, as written by jq, up to the first value that is not an object.
func objects(text []byte) (row []map[string]any, err error) {
	for values := stdjson.NewDecoder(bytes.NewReader(text)); values.More(); {
		var object map[string]any
		if err := values.Decode(&object); err != nil {
			return row, err
		}
		row = append(row, object)
	}
	return row, nil
}

// notYAML returns the YAML parser's first error, with the line number in the file.
func (d document) notYAML(err error) error {
	prefix := regexp.MustCompile(`^(error converting YAML to JSON: )?(yaml: )?(unmarshal errors:\n\s*)?`)
	text, _, _ := strings.Cut(prefix.ReplaceAllString(err.Error(), ""), "\n")
	var line int
	if _, err := fmt.Sscanf(text, "line %d:", &line); err == nil {
		_, text, _ = strings.Cut(text, ":")
		text = fmt.Sprintf("line %d:%s", d.line+line, text)
	}
	return errors.New("not YAML: " + text)
}
