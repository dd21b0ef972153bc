// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

// Package systemd_test runs the services and the package on the node, under a systemd.
package systemd_test

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/test/node/systemd"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
)

// besideSystemd starts a systemd in the node, and in its namespaces the same test again, which then carries out what it
// does there. What is installed before is there when systemd starts. systemd reads the units of Units, and of other
// folders.
func besideSystemd(t *testing.T, install, do func(t *testing.T), folders ...string) {
	t.Helper()
	switch {
	case os.Getenv("RDMA_NODE") == "":
		t.Fatal("this test runs inside the RDMA node: call `make e2e`")
	case os.Getenv(inside) == "":
		install(t)
		beside := startSystemd(t, append([]string{units}, folders...)...)
		self, err := filepath.Abs(os.Args[0])
		if err != nil {
			t.Fatal(err)
		}
		deadline, _ := t.Deadline() // the Makefile gives one
		_, subtests, _ := strings.Cut(flag.Lookup("test.run").Value.String(), "/")
		cmd := beside.Command(self, "-test.run=^"+t.Name()+"$/"+subtests,
			"-test.skip="+flag.Lookup("test.skip").Value.String(), "-test.v",
			"-test.timeout="+(time.Until(deadline)-time.Minute).String(),
			"-bin", *bin, "-upgrades", strconv.Itoa(*upgrades))
		cmd.Env = append(os.Environ(), inside+"=1")
		cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
		cmd.WaitDelay = await.Patience // where a process that it left keeps its output open
		if err := cmd.Run(); err != nil {
			t.Errorf("beside systemd: %v", err)
		}
	default:
		do(t)
	}
}

// startSystemd starts a systemd with little else to do.
func startSystemd(t *testing.T, folders ...string) *systemd.Systemd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	s, err := systemd.Start(ctx, folders...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Stop()
		if t.Failed() {
			t.Logf("systemd:\n%s", systemd.Log("nri-rdma"))
		}
	})
	return s
}
