// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

const (
	// stateMost bounds the OCI state in bytes. The state contains the container's annotations, which users write.
	stateMost = 1 << 20
	// configMost bounds config.json in bytes.
	configMost = 16 << 20
)

// options are the hook's flags.
type options struct {
	memlock    string
	kubernetes bool
	required   bool
	within     time.Duration

	inForce string // the policy file, which tests replace
}

// flags returns the hook's flags. Parsing them prints nothing.
func (o *options) flags() *pflag.FlagSet {
	f := pflag.NewFlagSet(program, pflag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	f.SortFlags = false
	f.StringVar(&o.memlock, "memlock", "unlimited",
		"raise a lower RLIMIT_MEMLOCK to this `SIZE`, such as 16Gi or unlimited")
	f.BoolVar(&o.kubernetes, "kubernetes", false,
		"also raise the limit of Kubernetes containers if nri-rdma has not run since the node booted")
	f.BoolVar(&o.required, "required", false,
		"exit with status 1 if memlock cannot be raised, so that the runtime does not start the container")
	f.DurationVar(&o.within, "within", 2*time.Second, "give up after this `TIME`")
	return f
}

// inTime runs the hook, and waits no longer than --within.
func (o options) inTime(do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-time.After(o.within):
		return fmt.Errorf("timed out after %s", o.within)
	}
}

// raise reads the OCI state, and raises the memlock of the process in it.
func (o options) raise(in io.Reader, processes *limits.Processes) error {
	s, err := readState(in)
	if err != nil {
		return err
	}
	want, err := spec.ParseLimit(o.memlock)
	if err != nil {
		return err
	}
	b, err := readBundle(s.Bundle)
	kubernetes := fromKubernetes(b.Annotations) || fromKubernetes(s.Annotations) ||
		strings.Contains(b.Linux.CgroupsPath, "kubepods")
	if err == nil && !b.othersSetMemlock() && (!kubernetes || o.raisesKubernetes()) {
		err = s.raise(processes, want)
	}
	if err != nil {
		return fmt.Errorf("container %s: %w", strconv.Quote(s.ID[:min(len(s.ID), idMost)]), err)
	}
	return nil
}

// inForce is the policy file that a registered plugin writes.
const inForce = "/run/rdma-spec/policy.yaml"

// raisesKubernetes reports whether the hook raises the limits of Kubernetes containers. By default, the plugin sets
// these limits, and the hook leaves them unchanged even if the plugin is not running.
func (o options) raisesKubernetes() bool {
	_, err := os.Lstat(o.inForce)
	return o.kubernetes && errors.Is(err, fs.ErrNotExist)
}

// idMost is the maximum number of characters of a container's ID in a message.
const idMost = 64

// state is the part of an OCI state that the hook needs.
type state struct {
	ID          string            `json:"id"`
	PID         int               `json:"pid"`
	Bundle      string            `json:"bundle"`
	Annotations map[string]string `json:"annotations"`
}

// readState reads the whole input, because a runtime might fail if it cannot write the whole OCI state.
func readState(in io.Reader) (s state, err error) {
	text, err := io.ReadAll(io.LimitReader(in, stateMost+1))
	if err != nil {
		return s, fmt.Errorf("cannot read the OCI state: %w", err)
	}
	if len(text) > stateMost {
		_, err = io.Copy(io.Discard, in)
		return s, errors.Join(fmt.Errorf("the OCI state on standard input is longer than %d bytes", stateMost), err)
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return s, errors.New("standard input is not an OCI state: run rdma-hook as a createRuntime hook")
	}
	switch {
	case s.PID <= 1:
		return s, errors.New("the OCI state has no process: run rdma-hook as a createRuntime hook")
	case !filepath.IsAbs(s.Bundle):
		return s, errors.New("the OCI state has no bundle")
	}
	return s, nil
}

// readBundle reads the config.json of a bundle.
func readBundle(dir string) (b bundle, err error) {
	node, err := files.Open("/")
	if err != nil {
		return b, err
	}
	defer func() { _ = node.Close() }() // opened for reading
	name := filepath.Join(dir, "config.json")
	text, err := node.Read(name[1:], configMost)
	if err != nil {
		return b, err
	}
	if err := json.Unmarshal(text, &b); err != nil {
		return b, fmt.Errorf("%s is not an OCI spec: %w", name, err)
	}
	return b, nil
}

// raise raises the container's process. The process is a child of the runtime, which waits for the hook, so its PID
// cannot be reused.
func (s state) raise(processes *limits.Processes, want spec.Limit) error {
	_, err := processes.RaiseOne(s.PID, want, func(read func(name string) ([]byte, error)) bool {
		command, err := read("cmdline")
		return err == nil && !isSandbox(command)
	})
	if err != nil {
		return fmt.Errorf("cannot raise memlock: %w", err)
	}
	return nil
}
