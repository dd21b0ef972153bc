// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

var errUnitUnknown = cli.Usage(errors.New("rdma-spec cannot determine the unit for --restart: restart the daemon " +
	"manually"))

// nodeRestart restarts a unit of the node.
func (o *Options) nodeRestart(unit string) *Restart {
	within := o.timeout
	if within == 0 {
		within = unitTime(unit)
	}
	return &Restart{Unit: unit, Node: thisNode{}, Within: within, Every: 500 * time.Millisecond}
}

// unbounded is the timeout for the restart of a unit that sets no timeouts.
const unbounded = 10 * time.Minute

// unitTime returns the sum of a unit's timeouts for a stop and a start.
func unitTime(unit string) (within time.Duration) {
	out, err := exec.Command("systemctl", "show", "--value", "--property=TimeoutStopUSec,TimeoutStartUSec", unit).Output()
	lines := strings.Fields(strings.NewReplacer(" ", "", "min", "m").Replace(string(out))) // 1min 30s
	for _, line := range lines {
		part, errPart := time.ParseDuration(line)
		within += part
		err = errors.Join(err, errPart)
	}
	if err != nil || len(lines) == 0 { // also "infinity"
		return unbounded
	}
	return within
}

// notRestarted reports that a daemon was not restarted despite --restart, and how to restart it.
func notRestarted(stderr io.Writer, restart []string) {
	fmt.Fprintln(stderr, "rdma-spec: did not restart the daemon, because none of its files changed; if the daemon has "+
		"not been restarted since the last change, run:",
		strings.Join(restart, " && "))
}

// readers returns the unit of the daemon that reads files, which is needed only for --restart, and a check of the
// files. The unit is "" if no daemon reads the files. If containerd already cannot load its configuration, there is no
// check.
func (o *Options) readers(ctx context.Context, paths []string) (unit string, check func() error, err error) {
	units := o.unitsOf(ctx, paths)
	switch {
	case len(units) > 1 && o.Restart:
		return "", nil, cli.Usage(fmt.Errorf("--restart can restart only one service, but the files belong to %s: for each "+
			"service, revert the changes with a separate command", strings.Join(units, ", ")))
	case slices.Contains(units, "") && o.Restart:
		_, err := o.daemon(ctx)
		return "", nil, cmp.Or(err, errUnitUnknown)
	}
	if slices.ContainsFunc(paths, func(path string) bool { _, known := o.unitOf(path); return !known }) {
		if daemon, err := o.daemon(ctx); err == nil && daemon.Check(ctx) == nil {
			check = func() error { return daemon.Check(ctx) }
		}
	}
	return strings.Join(units[:min(1, len(units))], ""), check, nil
}

// unitsOf returns the units of the daemons that read files. An unknown unit is "".
func (o *Options) unitsOf(ctx context.Context, paths []string) (units []string) {
	for _, path := range paths {
		unit, known := o.unitOf(path)
		if known && unit == "" {
			continue
		}
		if daemon, err := o.daemon(ctx); !known && err == nil {
			unit = Unit(o.Root, daemon)
		}
		units = append(units, unit)
	}
	slices.Sort(units)
	return slices.Compact(units)
}

// unitOf returns the unit that reads a file; "" if no unit does. The unit is known unless it is a containerd's unit.
func (o *Options) unitOf(path string) (unit string, known bool) {
	switch dir := filepath.Base(filepath.Dir(path)); {
	case o.isProgramOrUnit(path):
		return "", true
	case filepath.Base(path) == crioDropIn:
		return crioUnit, true
	case strings.HasSuffix(dir, ".service.d"):
		return strings.TrimSuffix(dir, ".d"), true
	}
	return "", false
}

// nextAfter returns the next steps after files were restored.
func (o *Options) nextAfter(ctx context.Context, paths []string) (next []string) {
	if slices.ContainsFunc(paths, func(path string) bool {
		return strings.HasPrefix(path, files.Below(o.Root, unitDir)+"/")
	}) {
		next = append(next, "systemctl daemon-reload")
	}
	if o.Restart {
		return next
	}
	for _, d := range o.containerds() {
		if slices.ContainsFunc(paths, func(path string) bool { return restartsItself(d, path) }) {
			return append(next, itself)
		}
	}
	for _, unit := range o.unitsOf(ctx, paths) {
		next = append(next, restartNext(unit)...)
	}
	return next
}

// sayReload warns if running containers lose devices in the reload of systemd that changed units require.
func (o *Options) sayReload(stderr io.Writer, changed []change.File) {
	units := files.Below(o.Root, unitDir) + "/"
	if !slices.ContainsFunc(changed, func(f change.File) bool { return strings.HasPrefix(f.Path, units) }) {
		return
	}
	s, err := node.Open(node.Options{Root: o.Root, Timeout: node.Daemons})
	if err != nil {
		return // the directory does not exist, which the plan reports
	}
	defer func() { _ = s.Close() }() // it was only read
	if takes := s.ReloadTakes(); takes != "" {
		fmt.Fprintf(stderr, "rdma-spec: warning: %s To see what is affected, run: %s\n", takes, node.ShowsScopes)
	}
}

// thisNode is the node that runs this.
type thisNode struct{}

// Restart implements Node.
func (thisNode) Restart(ctx context.Context, unit string) error {
	// A reload removes GPUs from some containers: see node.ReloadTakes.
	changed, err := exec.CommandContext(ctx, "systemctl", "show", "--value", "--property=NeedDaemonReload", unit).Output()
	if err != nil || strings.TrimSpace(string(changed)) != "no" {
		err = systemctl(ctx, "daemon-reload")
	}
	if err == nil {
		err = systemctl(ctx, "reset-failed", unit) // otherwise, systemd does not restart a unit that failed too often
	}
	if err == nil {
		err = systemctl(ctx, "restart", unit)
	}
	return err
}

func systemctl(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "systemctl", args...)
	cmd.WaitDelay = time.Second // its children can keep its output open
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return fmt.Errorf("systemctl %s: %w", strings.Join(args, " "), ctx.Err())
	}
	if err != nil {
		first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, first)
	}
	return nil
}

// Running implements Node.
func (thisNode) Running(ctx context.Context) (all []string, err error) {
	err = eachRuntime(ctx, func(r *cri.Runtime) error {
		ids, err := r.Running(ctx)
		all = append(all, ids...)
		return err
	})
	return all, err
}

// Ended implements Node.
func (thisNode) Ended(ctx context.Context, ids []string) (count int, err error) {
	err = eachRuntime(ctx, func(r *cri.Runtime) error {
		for _, id := range ids {
			ended, err := r.Ended(ctx, id)
			if err != nil {
				return err
			}
			if ended {
				count++
			}
		}
		return nil
	})
	return count, err
}

// eachRuntime queries all runtimes that serve CRI.
func eachRuntime(ctx context.Context, ask func(r *cri.Runtime) error) error {
	runtimes, _, err := cri.Connect(ctx, "", "/", cri.AnswersWithin)
	if err != nil {
		return err
	}
	for _, r := range runtimes {
		defer r.Close()
		if err := ask(r); err != nil {
			return fmt.Errorf("%s: %w", r.Socket, err)
		}
	}
	return nil
}
