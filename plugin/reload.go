// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

const (
	// settle is how long a configuration's folder must be quiet before the file is read: writers need a moment.
	settle = 50 * time.Millisecond
	// lookAtConfig is how often the file is read without being told of a change, as where it is a link to another folder.
	lookAtConfig = 10 * time.Second
)

// FollowConfig keeps the configuration file in force, until the context is done: it is read again when it changes, also where the
// change is that of a ConfigMap's links, and whenever again says so. A file that cannot be read never replaces one that could.
func (p *Plugin) FollowConfig(ctx context.Context, file string, again <-chan os.Signal) {
	events, stop := watchFolder(filepath.Dir(file))
	defer stop()
	look := time.NewTicker(lookAtConfig)
	defer look.Stop()
	quiet := time.NewTimer(0) // the file may have changed since it was read first
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case _, open := <-events:
			if !open {
				events = nil
				continue
			}
			quiet.Reset(settle)
		case <-quiet.C:
			p.reload(file)
		case <-look.C:
			p.reload(file)
		case <-again:
			p.reload(file)
		}
	}
}

// reload puts the configuration file in force if it is good and says something new.
func (p *Plugin) reload(file string) {
	loaded, err := policy.Load(file)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !p.fromFile.Load():
		return // there has never been one
	case err != nil:
		p.metrics.configValid.Set(0)
		p.misreads.say(err.Error(), time.Now(), func(int) {
			p.Log.WithError(err).Error("the configuration is refused: the last good one stays in force")
		})
		return
	}
	p.metrics.configValid.Set(1)
	p.misreads.forget()
	if current := p.policy.Load(); current != nil && p.fromFile.Load() && reflect.DeepEqual(current.Config(), loaded.Config()) {
		return
	}
	p.use(loaded)
	p.Log.WithField("config", file).Info("the configuration has changed and is in force")
}

// use puts a policy in force, for the containers that are created from now on.
func (p *Plugin) use(loaded *policy.Policy) {
	p.fromFile.Store(true)
	p.policy.Store(loaded)
	p.metrics.configLoaded.SetToCurrentTime()
	p.repair.lookAgain()
	select {
	case p.changed <- struct{}{}:
	default: // it is known that something has changed
	}
}

// watchFolder tells when anything in a folder changes, until it is stopped. Where the folder cannot be watched, it tells nothing.
func watchFolder(folder string) (events <-chan fsnotify.Event, stop func()) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return closedEvents(), func() {}
	}
	if err := watcher.Add(folder); err != nil {
		_ = watcher.Close() // nothing is lost with it
		return closedEvents(), func() {}
	}
	go func() {
		for range watcher.Errors {
			continue // a lost event is made up for by looking now and then
		}
	}()
	return watcher.Events, func() { _ = watcher.Close() }
}

func closedEvents() <-chan fsnotify.Event {
	events := make(chan fsnotify.Event)
	close(events)
	return events
}
