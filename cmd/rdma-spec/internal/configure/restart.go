// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/change"
)

// Node is a node's systemd and the runtimes that serve CRI.
type Node interface {
	// Restart restarts a unit as its file is now.
	Restart(ctx context.Context, unit string) error
	// Running returns the IDs of the running containers.
	Running(ctx context.Context) ([]string, error)
	// Ended returns how many of these containers, which are not running, have exited on their own.
	Ended(ctx context.Context, ids []string) (int, error)
}

// Restart restarts the daemon of a unit. Within is the timeout for the restart: by then, CRI must list the containers
// that were running before. Every is the interval between two queries.
type Restart struct {
	Unit          string
	Node          Node
	Within, Every time.Duration

	before []string
	tried  bool
}

// Prepare lists the running containers. If CRI does not respond, it fails, and the daemon is not restarted.
func (r *Restart) Prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.Within)
	defer cancel()
	var err error
	if r.before, err = r.Node.Running(ctx); err != nil {
		return fmt.Errorf("the daemon was not restarted, because the running containers cannot be listed: %w", err)
	}
	return nil
}

// Do restarts the daemon, and waits until CRI lists the containers that were running before, except for containers that
// have exited on their own.
func (r *Restart) Do(ctx context.Context) error {
	r.tried = true
	err := r.doInTime(ctx)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("interrupted while %s was restarting", r.Unit)
	}
	return err
}

// doInTime is Do with the timeout.
func (r *Restart) doInTime(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.Within)
	defer cancel()
	err := r.Node.Restart(ctx, r.Unit)
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("%s did not restart within %v: %w", r.Unit, r.Within, err)
	case err != nil:
		return err
	}
	for {
		now, err := r.Node.Running(ctx)
		if err == nil {
			if err = r.missing(ctx, now); err == nil {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s was restarted, but this error persists after %v: %w", r.Unit, r.Within, err)
		case <-time.After(r.Every):
		}
	}
}

func (r *Restart) missing(ctx context.Context, now []string) error {
	gone := slices.DeleteFunc(slices.Clone(r.before), func(id string) bool { return slices.Contains(now, id) })
	if len(gone) == 0 {
		return nil
	}
	ended, err := r.Node.Ended(ctx, gone)
	if err != nil {
		return err
	}
	if lost := len(gone) - ended; lost > 0 {
		return fmt.Errorf("%d of %d containers stopped running", lost, len(r.before))
	}
	return nil
}

// Undone restarts the daemon once more after the files were restored because of an error. Files that others have
// changed in the meantime are not restored. Undone returns the error with the result of the second restart.
func (r *Restart) Undone(ctx context.Context, because error) error {
	if !r.tried {
		return because
	}
	files := "the files were restored"
	as := " as before"
	if errors.Is(because, change.ErrNotRestored) {
		files = "some files were not restored"
		as = ""
	}
	if err := r.Do(ctx); err != nil {
		return errors.Join(because, fmt.Errorf("%s; the second restart failed: %w", files, err))
	}
	return fmt.Errorf("%w: %s, and %s is running%s", because, files, r.Unit, as)
}
