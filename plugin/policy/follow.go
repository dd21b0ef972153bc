// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/rdma-spec/rdma-spec/plugin/watch"
)

const (
	// settle is how long a configuration's directory must be quiet before the file is read.
	settle = 50 * time.Millisecond
	// readAgain is how often the file is read even if no change is reported. No change is reported if the file is a link
	// to another directory, for example.
	readAgain = 10 * time.Second
)

// File is a configuration file that is reloaded. Its methods are for one goroutine at a time.
type File struct {
	Path string
	// Optional says that the file need not exist. If it existed and was removed, that is an error nevertheless.
	Optional bool

	last   *Config // that was read last; nil if none was
	failed string  // the last error that was returned; "" if the file has been good since
}

// Read reads the file. It returns what changed since the last call: a new policy, or a new error, or neither.
func (f *File) Read() (*Policy, error) {
	p, err := Load(f.Path)
	switch {
	case err == nil:
		config := p.Config()
		if f.last != nil && f.failed == "" && reflect.DeepEqual(config, *f.last) {
			return nil, nil
		}
		f.last = &config
		f.failed = ""
		return p, nil
	case f.Optional && f.last == nil && f.failed == "" && errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err.Error() == f.failed:
		return nil, nil
	}
	f.failed = err.Error()
	return nil, err
}

// Follow reads the file whenever it changes (for example because the kubelet replaces a ConfigMap's links), and
// whenever again receives a signal, until the context is done. It calls use with each new policy or error.
func (f *File) Follow(ctx context.Context, again <-chan os.Signal, use func(*Policy, error)) {
	dir := watch.New(filepath.Dir(f.Path), watch.Contents)
	defer dir.Close()
	look := time.NewTicker(readAgain)
	defer look.Stop()
	for ctx.Err() == nil {
		if p, err := f.Read(); p != nil || err != nil {
			use(p, err)
		}
		dir.Renew()
		select {
		case <-ctx.Done():
		case <-dir.Changed:
			dir.Settle(settle)
		case <-look.C:
		case <-again:
		}
	}
}
