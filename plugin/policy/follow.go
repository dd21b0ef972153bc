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
	// readAgain is how often the file is read although nothing reports a change, as where it is a link to another
	// directory.
	readAgain = 10 * time.Second
)

// File is a configuration file that is read again and again. Its methods are for one goroutine at a time.
type File struct {
	Path string
	// Optional says that the file need not exist. One that was there and is gone is an error all the same.
	Optional bool

	last   *Config // that was read; nil where none was
	failed string  // the last error that was returned; "" if the file has been good since
}

// Read reads the file. It returns what is new since the last time: another policy, another error, or nil and nil.
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

// Follow reads the file whenever it changes, as when the kubelet swaps a ConfigMap's links, and whenever again
// receives, until the context is done. It gives what is new to use.
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
