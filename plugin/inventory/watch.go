// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const devices = "/dev/infiniband"

// devicesChanged gives when a device last came or went, by the time stamp of the folder that holds them all: one call of the kernel. It
// is the zero time where there is no folder.
func devicesChanged(root string) time.Time {
	info, err := os.Stat(filepath.Join(root, devices))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// watcher tells when the devices in /dev/infiniband change. Where they cannot be watched it never does.
type watcher struct {
	folder  string
	changed chan struct{} // holds one change that nobody has looked at yet
	notify  *fsnotify.Watcher
}

func watch(root string) *watcher {
	w := &watcher{folder: filepath.Join(root, devices), changed: make(chan struct{}, 1)}
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return w // no inotify instance is left: the next reading comes by itself
	}
	w.notify = notify
	go func() {
		for {
			select {
			case event, ok := <-notify.Events:
				if !ok {
					return
				}
				if event.Has(fsnotify.Create) || event.Has(fsnotify.Remove) || event.Has(fsnotify.Rename) {
					select {
					case w.changed <- struct{}{}:
					default:
					}
				}
			case _, ok := <-notify.Errors:
				if !ok {
					return
				}
			}
		}
	}()
	return w
}

// look watches the folder that is there now: drivers take it away and bring a new one.
func (w *watcher) look() {
	if w.notify != nil {
		_ = w.notify.Add(w.folder)
	}
}

func (w *watcher) close() {
	if w.notify != nil {
		_ = w.notify.Close()
	}
}
