// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Command release creates the files of a release from the programs that make has built, such as the container image,
// packages, and the Helm chart. The command needs no daemon, no registry, and no network. The files are reproducible.
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
	cmd := &cobra.Command{Use: "release", Short: "Create the release files", SilenceUsage: true,
		SilenceErrors: true}
	cmd.AddCommand(
		newMakeCommand("image", "Write the container image to image/ (an OCI layout) and to image.tar", "bin",
			(*release).writeImage),
		newMakeCommand("packages", "Create a deb and an rpm package for each architecture", "bin/packages",
			(*release).writePackages),
		newMakeCommand("all", "Empty the output directory, and create all files of a release in it", "bin/release",
			(*release).writeAll),
		newDigestsCommand(), newPushCommand())
	return cmd
}

// flags are the flags that all commands that create files have.
type flags struct{ root, version, date, output, key string }

func (f *flags) add(cmd *cobra.Command, output string) {
	cmd.Flags().StringVar(&f.root, "root", ".",
		"the repository's root `DIRECTORY`, with the programs in bin/amd64 and bin/arm64")
	cmd.Flags().StringVar(&f.version, "version", "", "the release's `VERSION`, as git describe prints it")
	cmd.Flags().StringVar(&f.date, "date", os.Getenv("SOURCE_DATE_EPOCH"),
		"the modification time of all files, in `SECONDS` since 1970")
	cmd.Flags().StringVar(&f.key, "key", "",
		"the `FILE` with the passphrase-free OpenPGP key that signs deb and rpm packages")
	cmd.Flags().StringVar(&f.output, "output", output, "the `DIRECTORY` to write to, relative to --root")
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

// newMakeCommand returns a command that creates files of a release.
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
		Short: "Print the architectures of an image, and the digest of each architecture's manifest, for attestations",
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
		Short: "Copy an image to a registry with the credentials of podman or docker, and print the image's digest",
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
