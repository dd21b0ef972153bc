// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package inforce

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// Writer writes the policy in force of this process. Only a registered plugin may use one: a validator has none, and a nil Writer
// writes nothing.
//
// Where two plugins are registered, as during an update, the file is that of the one that registered last. Nobody removes the file:
// readers refuse it once its writer has ended.
type Writer struct {
	// Root is the folder that has the node's proc and run: "/" on the node itself.
	Root string

	// me describes this process; nil stands for self.
	me func(root string) (process, error)
}

// Write writes the policy and where it comes from, whoever wrote the file before. Call it when the plugin has registered.
func (w *Writer) Write(p *policy.Policy, source string) error {
	if w == nil {
		return nil
	}
	_, text, err := w.document(p, source)
	if err != nil {
		return err
	}
	return w.replace(text)
}

// Keep writes the policy where the file does not have it, unless another plugin that still runs wrote the file: that one registered
// later. Call it when the policy changes, and now and then.
func (w *Writer) Keep(p *policy.Policy, source string) error {
	if w == nil {
		return nil
	}
	me, text, err := w.document(p, source)
	if err != nil {
		return err
	}
	var there document
	if old, err := readTrusted(w.path()); err == nil {
		if bytes.Equal(old, text) {
			return nil
		}
		if yaml.Unmarshal(old, &there) == nil && there.Writer != me && there.Writer.runs(w.Root) == nil {
			return nil
		}
	}
	return w.replace(text)
}

func (w *Writer) path() string { return filepath.Join(w.Root, File) }

// document gives this process, and the text of the file that it writes.
func (w *Writer) document(p *policy.Policy, source string) (me process, text []byte, err error) {
	identify := w.me
	if identify == nil {
		identify = self
	}
	if me, err = identify(w.Root); err != nil {
		return me, nil, fmt.Errorf("cannot write %s: the ID of this process on the node is unknown: %w", w.path(), err)
	}
	config, err := json.Marshal(p.Config())
	if err != nil {
		return me, nil, err
	}
	text, err = yaml.Marshal(document{APIVersion: apiVersion, Source: source, Writer: me, Policy: config})
	return me, text, err
}

// replace replaces the file. Its folder is made where there is none, and must be root's alone: readers would not trust it.
func (w *Writer) replace(text []byte) error {
	folder := filepath.Dir(w.path())
	err := os.Mkdir(folder, 0o755)
	if err != nil && !os.IsExist(err) {
		return err
	}
	info, err := os.Stat(folder)
	if err != nil {
		return err
	}
	if err := trusted(folder, info); err != nil {
		return err
	}
	return renameio.WriteFile(w.path(), text, 0o644, renameio.WithTempDir(folder), renameio.WithStaticPermissions(0o644))
}
