// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// part is a component of the node. It is stored as a directory in the cache.
type part struct {
	name string
	// recipe contains everything that decides the result of the build. Two parts with the same name and recipe are the
	// same part, whichever clone built it.
	recipe []string
	// cost describes how long a build takes.
	cost string
	// compiled means that compiling the part takes long.
	compiled bool
	// build writes the part to an empty directory.
	build func(ctx context.Context, dir string) error
}

// dir returns the part's directory in the cache, whether or not it exists.
func (p part) dir(cache string) string {
	sum := sha256.Sum256([]byte(strings.Join(p.recipe, "\x00")))
	return filepath.Join(cache, p.name+"-"+hex.EncodeToString(sum[:6]))
}

// cacheDir returns the directory that all clones of the project share.
func cacheDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no directory for the node's parts: set XDG_CACHE_HOME: %w", err)
	}
	return filepath.Join(base, "rdma-spec"), nil
}

// ensure builds the part unless the cache contains it. The part is built in a separate directory, which is renamed when
// the part is complete, so an interrupted build leaves nothing that looks like a part. While one clone builds the part,
// a lock makes other clones wait, so that they do not build it too.
func ensure(ctx context.Context, cache string, p part, log io.Writer) error {
	target := p.dir(cache)
	if exists(target) {
		return nil
	}
	unlock, err := lock(ctx, filepath.Join(cache, p.name+".lock"), log)
	if err != nil {
		return err
	}
	defer unlock()
	if exists(target) { // another process built it in the meantime
		return nil
	}

	scratch, err := os.MkdirTemp(cache, "."+p.name+"-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(scratch) }() // it was renamed, or the build failed
	if err := os.Chmod(scratch, 0o755); err != nil {
		return err
	}
	fmt.Fprintf(log, "rdma-node: building %s (once, %s)\n", p.name, p.cost)
	begin := time.Now()
	if err := p.build(ctx, scratch); err != nil {
		return fmt.Errorf("build %s for the node: %w", p.name, err)
	}
	if err := os.Rename(scratch, target); err != nil {
		return err
	}
	fmt.Fprintf(log, "rdma-node: built %s in %.1f s\n", p.name, time.Since(begin).Seconds())
	return nil
}

// lock locks a file until unlock is called. The kernel releases the lock when the process ends, so no lock outlives its
// holder.
func lock(ctx context.Context, path string, log io.Writer) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	unlock = func() { _ = file.Close() } // nothing is written to it
	for told := false; ; told = true {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return unlock, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			unlock()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if !told {
			fmt.Fprintf(log, "rdma-node: waiting for another process that holds %s\n", path)
		}
		select {
		case <-ctx.Done():
			unlock()
			return nil, fmt.Errorf("waiting for %s: %w", path, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
