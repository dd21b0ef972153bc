// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"time"
)

// A child gets the limits of its parent early in the fork, and is listed at its end: in between, the kernel copies the parent's page
// tables, 15 ms for each GiB in small pages, and others may have the CPU. So a fork that began before its parent was raised may leave a
// child that is low, and that appears later. Until then the thread that forks is running, ready to run or in uninterruptible sleep, and
// spends no time in user mode.
const (
	// returned is how much time in user mode shows that a thread has returned from a fork. The kernel estimates that time by ticks.
	returned = 100 * time.Millisecond
	// forkPatience bounds how long one call of Raise awaits forks, and forkStep is between two looks.
	forkPatience = 10 * time.Second
	forkStep     = 50 * time.Millisecond
	// tick is the unit of time in /proc/PID/stat: USER_HZ is 100 on amd64 and arm64.
	tick = 10 * time.Millisecond
)

// thread is a thread that may be in a fork that began before its process was raised.
type thread struct {
	pid, tid int
	user     time.Duration // its time in user mode when the process had been raised
}

// forking returns the threads of a process that may be in a fork now.
func (p *Processes) forking(pid int) []thread {
	tids, err := p.kernel.Threads(pid)
	if err != nil {
		return nil // it has ended, and so have its forks
	}
	var threads []thread
	for _, tid := range tids {
		t := thread{pid: pid, tid: tid}
		if asleep, user, err := p.state(t); err == nil && !asleep {
			t.user = user
			threads = append(threads, t)
		}
	}
	return threads
}

// awaitForks returns when no thread can still be in a fork that it was in when its process was raised, or when it has waited long enough. It
// returns what is left of its patience.
func (p *Processes) awaitForks(ctx context.Context, threads []thread, patience time.Duration) time.Duration {
	for ; len(threads) > 0 && patience > 0 && ctx.Err() == nil; patience -= forkStep {
		p.kernel.Pause(ctx, forkStep)
		threads = slices.DeleteFunc(threads, func(t thread) bool {
			asleep, user, err := p.state(t)
			return err != nil || asleep || user-t.user >= returned
		})
	}
	return patience
}

// state reports whether a thread is in a state in which no thread forks, and returns its time in user mode.
func (p *Processes) state(t thread) (asleep bool, user time.Duration, err error) {
	text, err := p.kernel.Read(t.pid, path.Join("task", strconv.Itoa(t.tid), "stat"))
	if err != nil {
		return false, 0, err
	}
	state, user, err := parseStat(text)
	if err != nil {
		return false, 0, fmt.Errorf("/proc/%d/task/%d/stat: %w", t.pid, t.tid, err)
	}
	return state != 'R' && state != 'D', user, nil
}

// parseStat finds a thread's state and its time in user mode, the fields 3 and 14, in the text of /proc/PID/task/TID/stat. Field 2 is the
// command in parentheses, and may hold anything.
func parseStat(text []byte) (state byte, user time.Duration, err error) {
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 12 {
		return 0, 0, errors.New("it has less than 14 fields")
	}
	ticks, err := parseNumber(string(fields[11]), 10, 39)
	return fields[0][0], time.Duration(ticks) * tick, err
}
