// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package watch reports changes in a directory. It is a hint that saves time, not a guarantee: if a node has no inotify
// instance left, or a directory cannot be watched, nothing is reported. Code that depends on a file also reads it now
// and then.
package watch

import (
	"time"

	"github.com/fsnotify/fsnotify"
)

// Dir reports changes in one directory, also after the directory was removed and made again.
type Dir struct {
	// Changed holds one value if something has happened since the last one was received.
	Changed <-chan struct{}

	path   string
	notify *fsnotify.Watcher // nil if the node has none left
}

// Kinds of changes.
const (
	Names    = fsnotify.Create | fsnotify.Remove | fsnotify.Rename // files appear and disappear
	Contents = Names | fsnotify.Write                              // or are written to
)

// New watches a directory for changes of some kinds, until Close. The directory need not exist.
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
			default: // a change is reported already
			}
		}
	}()
	go func() {
		for range notify.Errors {
			continue // an event was lost; nobody relies on it
		}
	}()
	return f
}

// Renew watches the directory that has the path now: it may be another one.
func (f *Dir) Renew() {
	if f.notify != nil {
		_ = f.notify.Add(f.path) // if it fails, nothing is reported, as the package says
	}
}

// Settle waits until nothing has changed for a time: writers need a moment. It gives up after ten times as long.
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

// Close ends the watch.
func (f *Dir) Close() {
	if f.notify != nil {
		_ = f.notify.Close() // nothing is lost with it
	}
}
