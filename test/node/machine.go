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
	"slices"
	"strings"
	"time"
)

// trialLimit is how long a boot may take to count as one that works. It takes
// two seconds with KVM and UML, and KVM hangs where the host is itself a guest
// without nesting, although /dev/kvm is there.
const trialLimit = 8 * time.Second

// machines are what can run the guest, the fastest first. QEMU's emulation works everywhere.
var machines = []string{"kvm", "uml", "tcg"}

// chooseMachine answers with the option where it names one, otherwise with the
// fastest that works on this host. The answer is kept in the cache, for this boot
// of the host and these parts.
func chooseMachine(ctx context.Context, parts PartSet, options Options) (string, error) {
	if options.Machine != "" {
		if !slices.Contains(machines, options.Machine) {
			return "", fmt.Errorf("no machine %q: choose one of %s", options.Machine, strings.Join(machines, ", "))
		}
		return options.Machine, nil
	}
	answer := machineAnswer(parts)
	unlock, err := lock(ctx, filepath.Join(filepath.Dir(parts.folder), "machine.lock"), options.Log)
	if err != nil {
		return "", err
	}
	defer unlock()
	if known, err := os.ReadFile(answer); err == nil {
		return string(known), nil
	}
	machine, err := fastest(ctx, parts, options)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(options.Log, "rdma-node: this host runs the node by %s\n", machine)
	return machine, os.WriteFile(answer, []byte(machine), 0o644)
}

// fastest tries all machines but the last one, which works everywhere.
func fastest(ctx context.Context, parts PartSet, options Options) (string, error) {
	last := len(machines) - 1
	for _, machine := range machines[:last] {
		if !canTry(parts, machine) {
			continue
		}
		fmt.Fprintf(options.Log, "rdma-node: trying %s (once, up to %s)\n", machine, trialLimit)
		if works, err := tryMachine(ctx, parts, options, machine); err != nil || works {
			return machine, err
		}
	}
	return machines[last], nil
}

// Machine returns what runs the node on this host.
func Machine(ctx context.Context, parts PartSet, options Options) (string, error) {
	return chooseMachine(ctx, parts, options.withDefaults())
}

// canTry tells whether the host has what a machine needs.
func canTry(parts PartSet, machine string) bool {
	if machine == "uml" {
		return exists(filepath.Join(parts.folder, "uml", "linux"))
	}
	device, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err == nil {
		_ = device.Close() // opened only to see that we may
	}
	return err == nil
}

// machineAnswer is the file with the answer for this boot of this host, and for these parts with a kernel for UML or without.
func machineAnswer(parts PartSet) string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")             // "" where there is none: one answer for all boots
	uml, _ := filepath.EvalSymlinks(filepath.Join(parts.folder, "uml")) // "" where it is not built
	sum := sha256.Sum256([]byte(strings.TrimSpace(string(id)) + uml))
	return filepath.Join(filepath.Dir(parts.folder), "machine-"+hex.EncodeToString(sum[:6]))
}

// tryMachine boots a node and runs one command in it.
func tryMachine(ctx context.Context, parts PartSet, options Options, machine string) (works bool, err error) {
	trial, cancel := context.WithTimeout(ctx, trialLimit)
	defer cancel()
	options.Machine, options.Share = machine, ""
	n, err := boot(trial, parts, options)
	if err != nil {
		var died *DiedError
		switch {
		case ctx.Err() != nil:
			return false, context.Cause(ctx)
		case errors.As(err, &died), errors.Is(err, context.DeadlineExceeded):
			return false, nil
		}
		return false, err
	}
	defer func() { _ = n.Close() }()
	status, err := n.Run(trial, Command{Args: []string{"true"}})
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	return err == nil && status == 0, nil
}
