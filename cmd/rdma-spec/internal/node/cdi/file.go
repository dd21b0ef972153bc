// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/rdma-spec/rdma-spec/spec/files"
	"github.com/rdma-spec/rdma-spec/spec/files/atomicfile"
)

// Text returns the text of a CDI file, after CDI's own library has accepted the text. The same spec and options produce
// the same text.
func Text(built *specs.Spec, o Options) ([]byte, error) {
	document, err := yaml.Marshal(built)
	if err != nil {
		return nil, err
	}
	text := append([]byte("# This node's HCAs, for container runtimes.\n"+madeWith+o.command()+"\n"), document...)
	file, err := atomicfile.InMemory(text)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // a copy
	_, err = cdi.ReadSpec(file.Name(), 0)
	return text, err
}

// Write replaces a file atomically, and creates the directory if it is missing. If text is nil, Write removes the file.
// changed is false if the file already has this text. Write fails if the file defines devices other than HCAs.
func Write(file string, text []byte) (changed bool, err error) {
	now, err := readOurs(file)
	switch {
	case err != nil || files.Same(now, text):
		return false, err
	case text == nil:
		return true, atomicfile.Change(file, now, nil, 0)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return false, fmt.Errorf("cannot create %s: %w", filepath.Dir(file), files.Cause(err))
	}
	return true, atomicfile.Write(file, text, 0o644)
}

// readOurs returns the content of a file that Write can replace; nil if the file does not exist.
func readOurs(file string) ([]byte, error) {
	text, err := files.Content(file)
	if err != nil || text == nil {
		return nil, err
	}
	if found, err := cdi.ParseSpec(text); len(text) > 0 && (err != nil || found == nil || found.Kind != Kind) {
		return nil, fmt.Errorf("%s is not a CDI file of kind %s: remove this file, or set --to to another path", file, Kind)
	}
	return text, nil
}
