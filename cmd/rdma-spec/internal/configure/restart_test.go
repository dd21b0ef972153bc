// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// daemon is a fake container runtime and its systemd: it runs after a restart if its configuration is good, and takes a
// while to answer.
type daemon struct {
	good, refuses bool
	hangs         bool // it answers nobody where its configuration is not good, nor does systemctl
	forgets       int  // how many containers it loses where its configuration is not good
	containers    []string
	ended         []string // of containers, by themselves
	after         time.Duration
	ready         time.Time
	calls         []string
}

func (d *daemon) Restart(ctx context.Context, unit string) error {
	d.calls = append(d.calls, "restart "+unit)
	if d.hangs && !d.good {
		<-ctx.Done()
		return ctx.Err()
	}
	if d.refuses && !d.good {
		return errors.New("systemctl restart: exit status 1")
	}
	d.ready = time.Now().Add(d.after)
	return nil
}

func (d *daemon) Running(ctx context.Context) ([]string, error) {
	if d.hangs && !d.good {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if time.Now().Before(d.ready) || d.forgets == 0 && !d.good {
		return nil, errors.New("connection refused")
	}
	running := d.containers
	if !d.good {
		running = running[d.forgets:]
	}
	return slices.DeleteFunc(slices.Clone(running), func(id string) bool { return slices.Contains(d.ended, id) }), nil
}

func (d *daemon) Ended(_ context.Context, ids []string) (int, error) {
	return len(slices.DeleteFunc(ids, func(id string) bool { return !slices.Contains(d.ended, id) })), nil
}

func TestRestart(t *testing.T) {
	for name, test := range map[string]struct {
		becomes daemon // after the change
		want    string // of the error; "" for none
		calls   string
	}{
		"well": {daemon{good: true, after: 20 * time.Second}, "", "restart x.service"},
		"too slowly": {daemon{good: true, after: 31 * time.Second},
			"x.service was restarted, but this error persists after 30s: connection refused",
			"restart x.service, restart x.service"},
		"never": {daemon{},
			"x.service was restarted, but this error persists after 30s: connection refused: the files were restored, and x.service is running as before",
			"restart x.service, restart x.service"},
		"hangs": {daemon{hangs: true},
			"x.service did not restart within 30s: context deadline exceeded: the files were restored, and x.service is " +
				"running as before", "restart x.service, restart x.service"},
		"refused by systemd": {daemon{refuses: true},
			"systemctl restart: exit status 1: the files were restored, and x.service is running as before",
			"restart x.service, restart x.service"},
		"with a container that ends": {daemon{good: true, ended: []string{"a"}}, "", "restart x.service"},
		"with one that ends, and never": {daemon{ended: []string{"a"}},
			"connection refused: the files were restored, and x.service is running as before",
			"restart x.service, restart x.service"},
		"with containers that are lost": {daemon{forgets: 1},
			"1 of 2 containers stopped running: the files were restored, and x.service is running as before",
			"restart x.service, restart x.service"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				now := &daemon{good: true, containers: []string{"a", "b"}}
				r := &Restart{Unit: "x.service", Node: now, Within: 30 * time.Second, Every: time.Second}
				if err := r.Prepare(t.Context()); err != nil {
					t.Fatal(err)
				}
				now.good, now.refuses, now.hangs, now.forgets, now.after, now.ended = test.becomes.good, test.becomes.refuses,
					test.becomes.hangs, test.becomes.forgets, test.becomes.after, test.becomes.ended
				err := r.Do(t.Context())
				if err != nil {
					now.good, now.after = true, 0 // the files are restored
					err = r.Undone(t.Context(), err)
				}
				if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
					t.Errorf("error %v, want %q", err, test.want)
				}
				if diff := cmp.Diff(test.calls, strings.Join(now.calls, ", ")); diff != "" {
					t.Errorf("calls (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// Where the containers are unknown, or nothing was restarted, no daemon is touched.
func TestRestartTouchesNoDaemonForNothing(t *testing.T) {
	silent := &daemon{}
	r := &Restart{Unit: "x.service", Node: silent}
	if err := r.Prepare(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "the daemon was not restarted, because ") {
		t.Errorf("Prepare: %v", err)
	}
	because := errors.New("no space left on device")
	if err := r.Undone(t.Context(), because); !errors.Is(err, because) || len(silent.calls) > 0 {
		t.Errorf("Undone: %v, %q", err, silent.calls)
	}
}

// A runtime that does not answer before the restart is not waited for without end.
func TestRestartIsPreparedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mute := &daemon{hangs: true}
		r := &Restart{Unit: "x.service", Node: mute, Within: 30 * time.Second}
		if err := r.Prepare(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Prepare: %v", err)
		}
	})
}

// A daemon that does not come back with the files restored either: both are said.
func TestRestartSaysThatTheDaemonDoesNotComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := &daemon{good: true, containers: []string{"a"}}
		r := &Restart{Unit: "x.service", Node: gone, Within: 30 * time.Second, Every: time.Second}
		if err := r.Prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		gone.good = false
		err := r.Undone(t.Context(), r.Do(t.Context()))
		if err == nil || !strings.Contains(err.Error(), "the files were restored; the second restart failed: x.service was restarted") {
			t.Errorf("Undone: %v", err)
		}
	})
}
