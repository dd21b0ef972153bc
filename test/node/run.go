// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// run runs a program on the host in a directory. If the program fails, the error contains its output.
func run(ctx context.Context, dir string, env []string, name string, args ...string) error {
	_, err := output(ctx, dir, env, name, args...)
	return err
}

// output runs a program like run, and returns its standard output.
func output(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	path, err := program(name)
	if err != nil {
		return "", err
	}
	var stdout, all bytes.Buffer
	command := exec.CommandContext(ctx, path, args...)
	command.Dir = dir
	command.Env = append(os.Environ(), env...)
	command.Stdout = &stdout
	command.Stderr = &all
	if err := command.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err,
			lastLines(all.String()+stdout.String(), 12))
	}
	return stdout.String(), nil
}

// program finds a program of the host, also in the directories for administrators, which are not in an ordinary user's
// PATH.
func program(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/go/bin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no program %q on this host: install it", name)
}

// lastLines returns the last few lines of a text.
func lastLines(text string, count int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-count):], "\n")
}
