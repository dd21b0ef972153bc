// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package systemd runs a systemd inside the node, in PID and mount namespaces of its own. It knows neither the services
// that it runs nor what is tested.
package systemd

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"github.com/rdma-spec/rdma-spec/test/node/daemon"
)

// Units is a directory from which systemd reads units.
const Units = "/run/units"

// private is the socket at which systemd listens.
const private = "/run/systemd/private"

// Systemd is a running systemd.
type Systemd struct {
	unshare *daemon.Process
	pid     int
}

// Start starts a systemd and waits until it listens. It reads units from Units and from the given directories; if
// several contain the same unit, the first directory has priority.
func Start(ctx context.Context, dirs ...string) (*Systemd, error) {
	if err := writeTargets(); err != nil {
		return nil, err
	}
	if err := maskGenerators(); err != nil {
		return nil, err
	}
	if err := os.RemoveAll(private); err != nil { // an earlier systemd listened there
		return nil, err
	}
	path := "SYSTEMD_UNIT_PATH=" + strings.Join(append(dirs, Units), ":")
	unshare, err := daemon.Start([]string{"container=other", path},
		"unshare", "--fork", "--kill-child", "--pid", "--mount", "--mount-proc",
		"/lib/systemd/systemd", "--system", "--unit=basic.target", "--log-target=kmsg", "--show-status=0")
	if err != nil {
		return nil, err
	}
	s := &Systemd{unshare: unshare}
	children := fmt.Sprintf("/proc/%d/task/%d/children", unshare.PID(), unshare.PID())
	err = unshare.Await(ctx, "has systemd listen", func() bool {
		child, err := os.ReadFile(children)
		if err == nil {
			s.pid, _ = strconv.Atoi(strings.TrimSpace(string(child))) // 0: not known yet
		}
		_, err = os.Stat(private)
		return err == nil && s.pid != 0
	})
	if err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// writeTargets writes empty targets, on which services depend.
func writeTargets() error {
	for _, target := range []string{"sysinit", "basic", "multi-user", "shutdown"} {
		if err := write(filepath.Join(Units, target+".target"), "[Unit]\nDefaultDependencies=no\n", 0o644); err != nil {
			return err
		}
	}
	return nil
}

// maskGenerators prevents systemd's generators from creating units for the node's mounts.
func maskGenerators() error {
	generators, err := filepath.Glob("/lib/systemd/system-generators/*")
	if err != nil || len(generators) == 0 {
		return fmt.Errorf("systemd's generators: %v, %w", generators, err)
	}
	for _, g := range generators {
		if err := write(filepath.Join("/run/systemd/system-generators", filepath.Base(g)), "#!/bin/sh\n", 0o755); err != nil {
			return err
		}
	}
	return nil
}

func write(file, text string, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text), mode)
}

// Command returns a command that runs in systemd's namespaces, like its services.
func (s *Systemd) Command(program string, args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--target", strconv.Itoa(s.pid), "--pid", "--mount",
		"--wd=.", program}, args...)...)
}

// Stop ends systemd and, with its PID namespace, everything that it started.
func (s *Systemd) Stop() {
	_ = s.unshare.Signal(syscall.SIGKILL) // it may have ended already
	<-s.unshare.Exited()
}

// Log returns the lines of the kernel log that systemd wrote, and those that name one of the units.
func Log(units ...string) string {
	log, _ := exec.Command("dmesg").Output() // if this fails, the log is incomplete
	names := "systemd"
	for _, unit := range units {
		names += "|" + regexp.QuoteMeta(unit)
	}
	return strings.Join(regexp.MustCompile("(?m)^.*("+names+").*$").FindAllString(string(log), -1), "\n")
}
