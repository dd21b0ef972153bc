// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// TestStatus runs the program itself, because a Makefile sees the program's exit status.
func TestStatus(t *testing.T) {
	program := filepath.Join(scratch.Dir(t), "rdma-node")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// lockup is a script that, at its first run, makes the kernel print the message of a lockup and panic.
	const lockup = `if mkdir /run/host-share/locked-up; then echo first; echo '<0>Kernel panic - not syncing: softlockup' >/dev/kmsg; ` +
		`echo c >/proc/sysrq-trigger; else echo second; exit 7; fi`
	for _, test := range []struct {
		name     string
		args     []string
		status   int
		out, err string // what the streams contain
	}{
		{"the command's", []string{"--", "sh", "-c", "pwd; exit 7"}, 7, "cmd/rdma-node\n", ""},
		{"too long", []string{"--timeout", "1s", "--", "sleep", "1000"}, 124, "", "the console's last lines"},
		{"locked up", []string{"--share", scratch.Dir(t), "--", "sh", "-c", lockup}, 7, "second\n", "once more, from the start"},
		{"not there", []string{"--", "/no/such/program"}, 127, "", "no such file"},
		{"prepared", []string{"--prepare"}, 0, "", ""},
		{"wrong parts", []string{"--parts", "spare"}, 125, "", `no parts "spare"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			command := exec.Command(program, test.args...)
			command.Stdout, command.Stderr = &stdout, &stderr
			err := command.Run()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if got := command.ProcessState.ExitCode(); got != test.status {
				t.Errorf("exit status %d, want %d", got, test.status)
			}
			if !strings.Contains(stdout.String(), test.out) || !strings.Contains(stderr.String(), test.err) {
				t.Errorf("stdout %q, stderr %q", stdout.String(), stderr.String())
			}
		})
	}
}

func TestMain(m *testing.M) {
	// The program inherits standard input. A terminal would change its behavior.
	os.Stdin, _ = os.Open(os.DevNull)
	os.Exit(m.Run())
}
