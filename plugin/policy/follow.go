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
	// settle is the time for which the configuration's directory must remain unchanged before the file is read.
	settle = 50 * time.Millisecond
	// readAgain is the interval at which the file is read even if the kernel reports no change. For example, the kernel
	// reports no change if the file is a link to another directory.
	readAgain = 10 * time.Second
)

// File is a configuration file that is reloaded. Only one goroutine at a time can call the methods of a File.
type File struct {
	Path string
	// Optional is true if the file need not exist. The removal of an existing file is an error even if Optional is true.
	Optional bool

	last   *Config // the configuration that was read last; nil if no configuration was read
	failed string  // the last error that Read returned; "" if the file has been valid since that error
}

// Read reads the file. If the configuration changed since the last call, Read returns the new policy. If reading fails
// with a new error, Read returns the error.
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

// Follow reads the file after each change, for example when the kubelet replaces a ConfigMap's links. Follow also reads
// the file after each signal on the channel. Follow calls use with each new policy or error, and returns when the
// context is done.
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
