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

// trialLimit is how long a trial boot may take. A boot takes two seconds with KVM or UML. If the host is a guest
// without nested virtualization, /dev/kvm may exist, but KVM hangs.
const trialLimit = 8 * time.Second

// machines are the programs that can run the guest, with the fastest first. QEMU's emulation works on every host.
var machines = []string{"kvm", "uml", "tcg"}

// chooseMachine returns the machine that the options name, or otherwise the fastest one that works on this host.
func chooseMachine(ctx context.Context, parts PartSet, options Options) (string, error) {
	if options.Machine != "" {
		if !slices.Contains(machines, options.Machine) {
			return "", fmt.Errorf("no machine %q: choose one of %s", options.Machine, strings.Join(machines, ", "))
		}
		return options.Machine, nil
	}
	unlock, err := lock(ctx, filepath.Join(filepath.Dir(parts.dir), "machine.lock"), options.Log)
	if err != nil {
		return "", err
	}
	defer unlock()
	last := len(machines) - 1
	for _, machine := range machines[:last] {
		if !canTry(parts, machine) {
			continue
		}
		if works, err := worksHere(ctx, parts, options, machine); err != nil || works {
			return machine, err
		}
	}
	return machines[last], nil
}

// worksHere reports whether a machine works on this host. It stores the answer in the cache.
func worksHere(ctx context.Context, parts PartSet, options Options, machine string) (bool, error) {
	const yes, no = "works", "does not work"
	file := answerFile(parts, machine)
	if known, err := os.ReadFile(file); err == nil {
		return string(known) == yes, nil
	}
	fmt.Fprintf(options.Log, "rdma-node: trying %s (once, up to %s)\n", machine, trialLimit)
	works, err := tryMachine(ctx, parts, options, machine)
	if err != nil {
		return false, err
	}
	answer := no
	if works {
		answer = yes
	}
	fmt.Fprintf(options.Log, "rdma-node: %s %s on this host\n", machine, answer)
	return works, os.WriteFile(file, []byte(answer), 0o644)
}

// Machine returns the name of the machine that runs the node on this host.
func Machine(ctx context.Context, parts PartSet, options Options) (string, error) {
	return chooseMachine(ctx, parts, options.withDefaults())
}

// canTry reports whether the host has what a machine needs.
func canTry(parts PartSet, machine string) bool {
	if machine == "uml" {
		return exists(filepath.Join(parts.dir, "uml", "linux"))
	}
	device, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err == nil {
		_ = device.Close() // opened only to check that this process may open it
	}
	return err == nil
}

// answerFile returns the path of the file that stores the answer for this boot of the host and, with UML, for this
// kernel.
func answerFile(parts PartSet, machine string) string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // if this fails, one answer applies to all boots
	tried := machine
	if machine == "uml" {
		tried, _ = filepath.EvalSymlinks(filepath.Join(parts.dir, "uml")) // canTry has checked it
	}
	sum := sha256.Sum256([]byte(strings.TrimSpace(string(id)) + tried))
	return filepath.Join(filepath.Dir(parts.dir), "trial-"+hex.EncodeToString(sum[:6]))
}

// tryMachine boots a node and runs one command on it.
func tryMachine(ctx context.Context, parts PartSet, options Options, machine string) (works bool, err error) {
	trial, cancel := context.WithTimeout(ctx, trialLimit)
	defer cancel()
	options.Machine = machine
	options.Share = ""
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
