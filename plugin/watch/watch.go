// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package watch reports changes in a directory. The reports save time, but are not guaranteed. If no inotify instance
// is left on the node, or the directory cannot be watched, the package reports nothing. Code that depends on a file
// must also read the file periodically.
package watch

import (
	"time"

	"github.com/fsnotify/fsnotify"
)

// Dir reports changes in one directory, even after the directory was removed and recreated.
type Dir struct {
	// Changed contains a value if the directory changed after the last value was received.
	Changed <-chan struct{}

	path   string
	notify *fsnotify.Watcher // nil if no inotify instance is left
}

// These constants are kinds of changes.
const (
	Names    = fsnotify.Create | fsnotify.Remove | fsnotify.Rename // files are added or removed
	Contents = Names | fsnotify.Write                              // files are added, removed, or written to
)

// New watches a directory for changes of the given kinds, until Close is called. The directory need not exist.
func New(path string, what fsnotify.Op) *Dir {
	changed := make(chan struct{}, 1)
	f := &Dir{Changed: changed, path: path}
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return f
	}
	f.notify = notify
	f.Renew()
	go func() {
		for event := range notify.Events {
			if event.Op&what == 0 {
				continue
			}
			select {
			case changed <- struct{}{}:
			default: // a change has already been reported
			}
		}
	}()
	go func() {
		for range notify.Errors {
			continue // an event was lost, which callers tolerate
		}
	}()
	return f
}

// Renew watches the directory that is currently at the path, which can differ from the directory that was watched
// before.
func (f *Dir) Renew() {
	if f.notify != nil {
		_ = f.notify.Add(f.path) // if this fails, nothing is reported, as documented
	}
}

// Settle waits until the directory has not changed for the given time, so that writers can finish. Settle waits for at
// most ten times the given time.
func (f *Dir) Settle(quiet time.Duration) {
	enough := time.NewTimer(10 * quiet)
	defer enough.Stop()
	for {
		select {
		case <-f.Changed:
		case <-time.After(quiet):
			return
		case <-enough.C:
			return
		}
	}
}

// Close stops watching.
func (f *Dir) Close() {
	if f.notify != nil {
		_ = f.notify.Close() // closing the watcher loses nothing
	}
}
