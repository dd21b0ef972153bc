// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// kvmLimit is how long a boot under KVM may take to count as one that works. It
// takes two seconds where KVM works, and hangs where the host is itself a guest
// without nesting, although /dev/kvm is there.
const kvmLimit = 8 * time.Second

// chooseAccelerator answers with the option where it names one, otherwise with
// KVM if a boot under it has worked on this host. The answer is kept in the
// cache, for this boot of the host.
func chooseAccelerator(ctx context.Context, parts PartSet, options Options) (string, error) {
	switch options.Accelerator {
	case "tcg", "kvm":
		return options.Accelerator, nil
	case "":
	default:
		return "", fmt.Errorf("no accelerator %q: choose tcg or kvm", options.Accelerator)
	}
	device, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return "tcg", nil // no KVM for us
	}
	_ = device.Close() // opened only to see that we may

	answer := kvmAnswer(filepath.Dir(parts.folder))
	unlock, err := lock(ctx, filepath.Join(filepath.Dir(parts.folder), "kvm.lock"), options.Log)
	if err != nil {
		return "", err
	}
	defer unlock()
	if known, err := os.ReadFile(answer); err == nil {
		return string(known), nil
	}
	fmt.Fprintf(options.Log, "rdma-node: trying KVM (once, up to %s)\n", kvmLimit)
	accelerator, err := tryKVM(ctx, parts, options)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(options.Log, "rdma-node: the accelerator of this host is %s\n", accelerator)
	return accelerator, os.WriteFile(answer, []byte(accelerator), 0o644)
}

// kvmAnswer is the file with the answer for this boot of this host.
func kvmAnswer(cache string) string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // "" where there is none: one answer for all boots
	sum := sha256.Sum256([]byte(strings.TrimSpace(string(id))))
	return filepath.Join(cache, "accelerator-"+hex.EncodeToString(sum[:6]))
}

// tryKVM boots a node and runs one command in it.
func tryKVM(ctx context.Context, parts PartSet, options Options) (string, error) {
	trial, cancel := context.WithTimeout(ctx, kvmLimit)
	defer cancel()
	options.Accelerator, options.Share = "kvm", ""
	n, err := boot(trial, parts, options)
	if err != nil {
		var died *DiedError
		switch {
		case ctx.Err() != nil:
			return "", context.Cause(ctx)
		case errors.As(err, &died), errors.Is(err, context.DeadlineExceeded):
			return "tcg", nil
		}
		return "", err
	}
	defer func() { _ = n.Close() }()
	status, err := n.Run(trial, Command{Args: []string{"true"}})
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if err != nil || status != 0 {
		return "tcg", nil
	}
	return "kvm", nil
}
