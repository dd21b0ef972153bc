// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package inforce

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// process names one process forever: its ID may be another's later, but not with the same start time in the same boot.
type process struct {
	PID       int    `json:"pid"`
	StartTime uint64 `json:"startTime"` // clock ticks since boot, as in /proc/PID/stat
	BootID    string `json:"bootID"`
}

// self gives this process, by the ID that the proc below a root has for it: in a container with the node's proc, that is its ID on the
// node.
func self(root string) (process, error) {
	link, err := os.Readlink(filepath.Join(root, "proc/self"))
	if err != nil {
		return process{}, err
	}
	pid, err := strconv.Atoi(link)
	if err != nil {
		return process{}, fmt.Errorf("%s/proc/self: %w", root, err)
	}
	return find(root, pid)
}

var errEnded = errors.New("no such process")

// find describes the process that has an ID. The error is errEnded where none runs.
func find(root string, pid int) (process, error) {
	boot, err := os.ReadFile(filepath.Join(root, "proc/sys/kernel/random/boot_id"))
	if err != nil {
		return process{}, err
	}
	stat, err := os.ReadFile(filepath.Join(root, "proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return process{}, errEnded
	}
	// PID (COMMAND) STATE …: a command may have any characters in it. The start time is the 22nd field.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return process{}, errEnded
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	return process{PID: pid, StartTime: start, BootID: string(bytes.TrimSpace(boot))}, err
}

// runs says why a process does not run any more.
func (p process) runs(root string) error {
	now, err := find(root, p.PID)
	switch {
	case err != nil:
		return err
	case now.BootID != p.BootID:
		return errors.New("the node has booted since")
	case now != p:
		return errors.New("another process has its ID")
	}
	return nil
}

// oneLine is an error on a single line.
type oneLine struct{ error }

func (e oneLine) Error() string { return strings.ReplaceAll(e.error.Error(), "\n", "; ") }

func (e oneLine) Unwrap() error { return e.error }
