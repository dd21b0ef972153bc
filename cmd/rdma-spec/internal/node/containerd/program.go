// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package containerd reads the configuration of a containerd as the daemon loads it: with imports, and with the
// defaults of the daemon's version. It plans no changes; package editor does.
package containerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"github.com/rdma-spec/rdma-spec/spec/files"
)

// Program is the containerd that loads a configuration.
type Program interface {
	// Version returns its version, such as 1.7.35.
	Version(ctx context.Context) (string, error)
	// Dump returns the effective configuration for a file, as TOML. An error is one line from the program.
	Dump(ctx context.Context, file string) ([]byte, error)
}

// Binary is the path of an installed containerd.
type Binary string

// answersWithin is the timeout of `containerd config dump`.
const answersWithin = 20 * time.Second

var versionNumber = regexp.MustCompile(`\bv?(\d+\.\d+\.\d+)`)

// Version implements Program.
func (b Binary) Version(ctx context.Context) (string, error) {
	out, _, err := b.output(ctx, "--version")
	if err != nil {
		return "", err
	}
	found := versionNumber.FindSubmatch(out)
	if found == nil {
		return "", fmt.Errorf("%s --version does not print a version: %.100q", b, out)
	}
	return string(found[1]), nil
}

// Dump implements Program.
func (b Binary) Dump(ctx context.Context, file string) ([]byte, error) {
	out, _, err := b.output(ctx, "--config", file, "config", "dump")
	return out, err
}

// Complaints returns the program's standard error when it loads a file.
func (b Binary) Complaints(ctx context.Context, file string) ([]byte, error) {
	_, said, err := b.output(ctx, "--config", file, "config", "dump")
	return said, err
}

func (b Binary) output(ctx context.Context, args ...string) (out, said []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, string(b), args...)
	cmd.Args[0] = "containerd" // K3s has a single program, which acts according to argv[0]
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err = cmd.Output()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return nil, nil, fmt.Errorf("%s does not respond: %w", b, ctx.Err())
	case errors.As(err, &exit) && strings.TrimSpace(stderr.String()) == "":
		return nil, nil, exit
	case errors.As(err, &exit):
		lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		return nil, nil, errors.New(strings.TrimPrefix(lines[len(lines)-1], "containerd: "))
	case err != nil:
		return nil, nil, fmt.Errorf("cannot run %s: %w", b, files.Cause(err))
	}
	return out, stderr.Bytes(), nil
}
