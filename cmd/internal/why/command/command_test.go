// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

func TestMain(m *testing.M) { repository.Main(m) }

// call calls the command, as programs do.
func call(m Machine, stdin string, args ...string) (status int, stdout, stderr string) {
	root := &cobra.Command{Use: "rdma-spec"}
	root.AddGroup(&cobra.Group{ID: cli.GroupPod})
	root.AddCommand(New(m))
	var out, err bytes.Buffer
	status = cli.Run(root, func() error { return nil }, append([]string{"why"}, args...), strings.NewReader(stdin), &out, &err)
	return status, out.String(), err.String()
}

// TestWhy_exampleOfPage checks that the page shows what the command writes.
func TestWhy_exampleOfPage(t *testing.T) {
	page := repository.Read(t, "docs/why.md")
	example := regexp.MustCompile("(?s)```console\n\\$ rdma-spec why '([^']*)'\n(.*?)```").FindStringSubmatch(page)
	if example == nil {
		t.Fatal("the page has no example")
	}
	asks := func(context.Context, []string, io.Writer) (map[string]bool, error) { return nil, nil }
	status, stdout, stderr := call(Machine{Program: "rdma-spec", Wrong: asks}, "", example[1])
	if diff := cmp.Diff(example[2], stdout); diff != "" || status != 1 || stderr != "" {
		t.Errorf("%d, %s; -page +command:\n%s", status, stderr, diff)
	}
}

func TestWhy_exitStatus(t *testing.T) {
	log := filepath.Join("..", "testdata", "logs", "nccl-reg-mr-memlock.log")
	for _, c := range []struct {
		stdin  string
		args   []string
		status int
	}{
		{"", []string{log}, 1},
		{"ibv_reg_mr failed: Bad address\n", []string{"-"}, 1},
		{"all is well\n", []string{"-"}, 0},
		{"", []string{"ibv_reg_mr", "failed:", "Bad", "address"}, 1},
		{"", []string{"Connection closed by remote peer"}, 0},
		{"", []string{"socketProgress"}, 0},
		{"", []string{filepath.Join("testdata", "none.log")}, 3},
		{"", []string{".."}, 3}, // a directory
		{"", nil, 2},
		{"", []string{"-", "-o", "xml"}, 2},
	} {
		if status, stdout, stderr := call(Machine{Program: "rdma-spec"}, c.stdin, c.args...); status != c.status {
			t.Errorf("%q: %d, want %d\n%s%s", c.args, status, c.status, stdout, stderr)
		}
	}
}

// TestWhy_wrongChecksFirst checks that the causes come first that are wrong on the node, for people and for programs, and that the next
// command is for where one is.
func TestWhy_wrongChecksFirst(t *testing.T) {
	const message = "ibv_modify_qp failed with error Connection timed out"
	var asked []string
	m := Machine{Program: "rdma-spec", Wrong: func(_ context.Context, checks []string, _ io.Writer) (map[string]bool, error) {
		asked = checks
		return map[string]bool{"port-active": true}, nil
	}}
	_, stdout, _ := call(m, "", message, "-o", "json")
	var got Result
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatal(err)
	}
	first := got.Roots[0].Causes[0]
	if first.Page != "port-active" || !first.Wrong || !got.Looked || got.Next != "rdma-spec doctor --explain port-active" {
		t.Errorf("%+v", got)
	}
	if !slices.Contains(asked, "port-active") || !slices.Contains(asked, "container-routes") {
		t.Errorf("asked: %q", asked)
	}
	if _, stdout, _ := call(m, "", message); !strings.Contains(stdout, "1. the port is down, or the fabric has no subnet manager (found on this node: port-active)") {
		t.Error(stdout)
	}
	if _, stdout, _ := call(Machine{Program: "kubectl rdma"}, "", message); !strings.Contains(stdout, "(on the node)") {
		t.Error(stdout)
	}
	m.Wrong = func(context.Context, []string, io.Writer) (map[string]bool, error) { return nil, errors.New("no node") }
	if status, _, stderr := call(m, "", message); status != 3 || !strings.Contains(stderr, "no node") {
		t.Errorf("%d: %s", status, stderr)
	}
}

// TestWhy_noControlCharacters checks that nothing of a log steers the terminal.
func TestWhy_noControlCharacters(t *testing.T) {
	_, stdout, _ := call(Machine{Program: "rdma-spec"}, "\x1b]0;title\x07ibv_reg_mr failed\x1b[2J: Bad address \u202eevil\n", "-")
	if strings.ContainsAny(stdout, "\x1b\x07\u202e") || !strings.Contains(stdout, "ibv_reg_mr, EFAULT") {
		t.Errorf("%q", stdout)
	}
}
