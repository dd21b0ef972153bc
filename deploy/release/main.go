// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Command release makes what people install from the programs that make has built: the container image, packages, the
// Helm chart. It needs no daemon, no registry and no network, and makes the same bytes of the same programs.
package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/deploy/release/internal/image"
)

func main() {
	if err := newCommand().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "release", Short: "Make the files that people install", SilenceUsage: true,
		SilenceErrors: true}
	cmd.AddCommand(
		newMakeCommand("image", "Make the container image: the directory image (an OCI layout) and image.tar", "bin",
			(*release).writeImage),
		newMakeCommand("packages", "Make a deb and an rpm for each architecture", "bin/packages",
			(*release).writePackages),
		newMakeCommand("all", "Make everything that a release has, and nothing else in the directory", "bin/release",
			(*release).writeAll),
		newDigestsCommand(), newPushCommand())
	return cmd
}

// flags are what all commands that make something have.
type flags struct{ root, version, date, output, key string }

func (f *flags) add(cmd *cobra.Command, output string) {
	cmd.Flags().StringVar(&f.root, "root", ".",
		"the repository's root `FOLDER`, whose bin/amd64 and bin/arm64 contain the programs")
	cmd.Flags().StringVar(&f.version, "version", "", "the `VERSION` that git describe prints")
	cmd.Flags().StringVar(&f.date, "date", os.Getenv("SOURCE_DATE_EPOCH"),
		"the time of all files, in `SECONDS` since 1970")
	cmd.Flags().StringVar(&f.key, "key", "", "the `FILE` of the OpenPGP key, without a passphrase, that signs deb and rpm")
	cmd.Flags().StringVar(&f.output, "output", output, "the `FOLDER` to write to, below the root")
}

func (f *flags) read() (*release, error) {
	if f.version == "" {
		return nil, errors.New("--version is missing")
	}
	seconds, err := strconv.ParseInt(f.date, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("--date: %w", err)
	}
	r, err := newRelease(f.root, filepath.Join(f.root, f.output), f.version, time.Unix(seconds, 0))
	if r != nil {
		r.key = f.key
	}
	return r, err
}

// newMakeCommand is a command that makes something of a release.
func newMakeCommand(use, short, output string, write func(*release) error) *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			r, err := f.read()
			if err != nil {
				return err
			}
			return write(r)
		},
	}
	f.add(cmd, output)
	return cmd
}

func newDigestsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "digests LAYOUT",
		Short: "Print each architecture of an image with the digest of its manifest, to attest something to it",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			digests, err := image.Digests(args[0])
			for _, arch := range slices.Sorted(maps.Keys(digests)) {
				fmt.Fprintln(cmd.OutOrStdout(), arch, digests[arch])
			}
			return err
		},
	}
}

func newPushCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "push LAYOUT REFERENCE",
		Short: "Copy an image to a registry, logged in as podman or docker is, and print its digest",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			pushed, err := image.Push(args[0], args[1], remote.WithAuthFromKeychain(authn.DefaultKeychain),
				remote.WithContext(cmd.Context()))
			if err == nil {
				fmt.Fprintln(cmd.OutOrStdout(), pushed)
			}
			return err
		},
	}
}
