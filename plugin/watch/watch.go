// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package watch reports changes in a folder. It is a hint that saves time, not a guarantee: where a node has no inotify instance left,
// or a folder cannot be watched, nothing is reported. Who depends on a file looks at it now and then as well.
package watch

import (
	"time"

	"github.com/fsnotify/fsnotify"
)

// Folder reports changes in one folder, also after the folder was removed and made again.
type Folder struct {
	// Changed holds one value once something of what is watched for has happened since it was last read.
	Changed <-chan struct{}

	path   string
	notify *fsnotify.Watcher // nil where there is none
}

// What is watched for.
const (
	Names    = fsnotify.Create | fsnotify.Remove | fsnotify.Rename // files come and go
	Contents = Names | fsnotify.Write                              // or are written
)

// New watches a folder for what happens in it, until Close. The folder need not exist.
func New(path string, what fsnotify.Op) *Folder {
	changed := make(chan struct{}, 1)
	f := &Folder{Changed: changed, path: path}
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
			default: // one is reported already
			}
		}
	}()
	go func() {
		for range notify.Errors {
			continue // a lost event; nobody relies on it
		}
	}()
	return f
}

// Renew watches the folder that is there now: another one may have taken its place.
func (f *Folder) Renew() {
	if f.notify != nil {
		_ = f.notify.Add(f.path) // where it fails nothing is reported, as the package says
	}
}

// Settle waits until nothing has changed for a time: writers need a moment. It gives up after ten times as long.
func (f *Folder) Settle(quiet time.Duration) {
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
func (f *Folder) Close() {
	if f.notify != nil {
		_ = f.notify.Close() // nothing is lost with it
	}
}
