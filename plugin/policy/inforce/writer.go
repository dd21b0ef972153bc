// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package inforce

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// Writer writes the policy in force. Only a registered plugin may use one: a validator has none, and a nil Writer
// writes nothing. It is for one goroutine at a time.
//
// Where two plugins are registered, as during an update, the file is that of the one that registered last. Nobody
// removes the file: readers refuse it once its writer has ended.
type Writer struct {
	// Root is the folder that has the node's run: "/" on the node itself.
	Root string
	// Version is the writer's own, for whoever reads the file.
	Version string

	file *os.File // that was written last, and is locked; nil before
}

// Write writes the policy and where it comes from, whoever wrote the file before. Call it when the plugin has
// registered.
func (w *Writer) Write(p *policy.Policy, source string) error {
	if w == nil {
		return nil
	}
	text, err := w.textOf(p, source)
	if err != nil {
		return err
	}
	return w.replace(text)
}

// Keep writes the policy where the file does not have it, unless another plugin that still runs wrote the file: that
// one registered later. Call it when the policy changes, and now and then.
func (w *Writer) Keep(p *policy.Policy, source string) error {
	if w == nil {
		return nil
	}
	text, err := w.textOf(p, source)
	if err != nil {
		return err
	}
	if there, err := openTrusted(w.path()); err == nil {
		defer func() { _ = there.Close() }() // opened for reading
		locked, err := isLocked(there)
		if err == nil && locked {
			if !w.wrote(there) {
				return nil
			}
			if old, err := io.ReadAll(there); err == nil && bytes.Equal(old, text) {
				return nil
			}
		}
	}
	return w.replace(text)
}

// Close ends the Writer as the end of its process does: what it wrote is in force no longer.
func (w *Writer) Close() {
	if w != nil {
		_ = w.file.Close() // it was written, if there is one, and the lock goes with it
	}
}

// wrote reports whether a file is the one that this Writer wrote last.
func (w *Writer) wrote(file *os.File) bool {
	mine, _ := w.file.Stat() // one that is not there is no other's
	its, _ := file.Stat()
	return os.SameFile(mine, its)
}

func (w *Writer) path() string { return filepath.Join(w.Root, File) }

// textOf returns what this process writes into the file.
func (w *Writer) textOf(p *policy.Policy, source string) ([]byte, error) {
	config, err := json.Marshal(p.Config())
	if err != nil {
		return nil, err
	}
	return yaml.Marshal(document{APIVersion: apiVersion, Source: source, PID: os.Getpid(),
		Version: w.Version, Policy: config})
}

// replace replaces the file by one that is locked already when it appears. Its folder is made where there is none, and
// must be root's alone: readers would not trust it.
func (w *Writer) replace(text []byte) error {
	folder := filepath.Dir(w.path())
	if err := os.Mkdir(folder, 0o755); err != nil && !os.IsExist(err) {
		return err
	}
	info, err := os.Stat(folder)
	if err != nil {
		return err
	}
	if err := trusted(folder, info); err != nil {
		return err
	}
	file, err := os.CreateTemp(folder, ".policy-*")
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	// Until it is locked, nobody but root can open it: a read lock of somebody else would keep it from being locked.
	if err = errors.Join(err, lock(file), file.Chmod(0o644)); err == nil {
		err = os.Rename(file.Name(), w.path())
	}
	if err != nil {
		_, _ = os.Remove(file.Name()), file.Close() // it is of no use
		return err
	}
	_ = w.file.Close() // another one is in its place
	w.file = file
	return nil
}
