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

// Text returns the text of a file, which CDI's own library has accepted. The same spec and options give the same text.
func Text(built *specs.Spec, o Options) ([]byte, error) {
	document, err := yaml.Marshal(built)
	if err != nil {
		return nil, err
	}
	text := append([]byte("# The HCAs of this node for container runtimes.\n"+madeWith+o.command()+"\n"), document...)
	file, err := atomicfile.InMemory(text)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // a copy
	_, err = cdi.ReadSpec(file.Name(), 0)
	return text, err
}

// Write replaces a file atomically, and makes its directory where there is none; without a text, it removes the file.
// It reports whether it did: a file that has the text already is left alone. It fails where a file has other devices
// than HCAs.
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

// readOurs returns the content of a file that may be replaced, nil where there is none.
func readOurs(file string) ([]byte, error) {
	text, err := files.Content(file)
	if err != nil || text == nil {
		return nil, err
	}
	if found, err := cdi.ParseSpec(text); len(text) > 0 && (err != nil || found == nil || found.Kind != Kind) {
		return nil, fmt.Errorf("%s is not a CDI file of kind %s: remove it, or choose another --to", file, Kind)
	}
	return text, nil
}
