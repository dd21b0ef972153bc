// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package wait implements rdma-spec wait, which waits until this node's plugin is registered. Use the command in the
// init container of a device plugin that must not offer its resource before nri-rdma is registered.
package wait

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/plugin/policy/inforce"
)

const (
	lookEvery = time.Second
	sayEvery  = 30 * time.Second
)

// Command is rdma-spec wait.
func Command() *cobra.Command {
	var root string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "wait",
		Short: "Wait until the plugin is registered on this node",
		Long: `Wait until nri-rdma is registered with this node's container runtime. If an init
container of a device plugin runs this command, the node has no RDMA resource, and gets no pods
that request one, until nri-rdma is registered.

The registered plugin holds a kernel lock on ` + inforce.File + `. The
command reads only the directory of this file, and needs no capabilities, network, or credentials.
Immediately, and then every 30 seconds, the command prints the reason for waiting.

The exit status is 1 if the plugin is not registered in time, and 3 if rdma-spec cannot determine
whether the plugin is registered.`,
		Example: `  rdma-spec wait
  rdma-spec wait --timeout 5m`,
		Args:    cobra.NoArgs,
		GroupID: cli.GroupNode,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := os.Stat(filepath.Join(root, "run")); err != nil {
				return fmt.Errorf("--root %s does not contain the node's /run: %w", root, err)
			}
			ctx := cmd.Context()
			if timeout > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, timeout)
				defer cancel()
			}
			err := untilRegistered(ctx, cmd.ErrOrStderr(), root)
			if err == nil {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), "nri-rdma is registered on this node")
			}
			return err
		},
	}
	f := cmd.Flags()
	cli.AddDurationFlag(f, &timeout, "timeout", 0, "give up after this `DURATION`, such as 5m; with 0, wait forever")
	f.StringVar(&root, "root", "/", "the directory that contains the node's /run")
	return cmd
}

// untilRegistered returns when the plugin of the node under a root is registered, or when the context ends.
func untilRegistered(ctx context.Context, stderr io.Writer, root string) error {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for said := (time.Time{}); ; {
		why := inforce.CheckWriter(root)
		if !errors.Is(why, fs.ErrNotExist) && !errors.Is(why, inforce.ErrEnded) {
			return why
		}
		if time.Since(said) >= sayEvery {
			said = time.Now()
			fmt.Fprintf(stderr, "rdma-spec: waiting until nri-rdma is registered on this node: %v\n", why)
		}
		select {
		case <-ctx.Done():
			fmt.Fprintf(stderr, "rdma-spec: timed out waiting for nri-rdma to register on this node: %v\n", why)
			return cli.ErrProblemFound
		case <-look.C:
		}
	}
}
