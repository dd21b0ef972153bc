// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/rdma-spec/rdma-spec/spec"
)

const (
	// DefaultHook is the path at which `rdma-spec configure cdi` installs the hook.
	DefaultHook = "/usr/local/bin/rdma-hook"
	// memlockNone is the value of --memlock for a CDI file without a hook.
	memlockNone = "none"
)

// Options are the options for a CDI file.
type Options struct {
	Devices    []string   // the names of HCAs, or "all"
	Memlock    spec.Limit // 0: no hook
	Hook       string
	Required   bool // if a container's memlock cannot be raised, the container does not start
	Kubernetes bool // the hook also raises the memlock of Kubernetes containers
	Management bool // include umad and issm devices
}

// Flags are the options as entered on the command line.
type Flags struct {
	options          Options
	devices, memlock string
}

// AddFlags adds the flags to a set.
func (f *Flags) AddFlags(set *pflag.FlagSet) {
	set.StringVar(&f.devices, "devices", all, "the `HCAs` to include: all, or names such as mlx5_0,mlx5_1")
	set.StringVar(&f.memlock, "memlock", "unlimited",
		"RLIMIT_MEMLOCK of containers: unlimited, a `SIZE` such as 16Gi, or none to omit the hook")
	set.StringVar(&f.options.Hook, "hook", DefaultHook, "the path of rdma-hook, the `PROGRAM` that raises memlock")
	set.BoolVar(&f.options.Required, "required", false, "do not let a container start if its memlock cannot be raised")
	set.BoolVar(&f.options.Kubernetes, "kubernetes", false,
		"also raise the memlock of Kubernetes containers if nri-rdma has not been registered since the node booted")
	set.BoolVar(&f.options.Management, "management", false,
		"add umad and issm devices, which let a container disrupt the whole fabric")
}

// Options parses the flags. An error means that the user set invalid flags.
func (f *Flags) Options() (o Options, err error) {
	o = f.options
	o.Devices = strings.Split(f.devices, ",")
	switch {
	case slices.Contains(o.Devices, ""):
		return o, errors.New("--devices contains an empty name: specify \"all\", or names such as mlx5_0,mlx5_1")
	case f.memlock == memlockNone:
		o.Hook = ""
		o.Required = false
		o.Kubernetes = false
		return o, nil
	case !filepath.IsAbs(o.Hook) || strings.ContainsAny(o.Hook, " \t\n"):
		return o, fmt.Errorf("--hook %q: specify an absolute path without spaces", o.Hook)
	}
	o.Memlock, err = spec.ParseLimit(f.memlock)
	return o, err
}

// All reports whether the CDI file includes all HCAs of the node.
func (o Options) All() bool { return slices.Equal(o.Devices, []string{all}) }

// hookArgs returns the hook's arguments, starting with its name.
func (o Options) hookArgs() []string {
	args := []string{filepath.Base(o.Hook), "memlock", "--memlock", o.Memlock.String()}
	if o.Required {
		args = append(args, "--required")
	}
	if o.Kubernetes {
		args = append(args, "--kubernetes")
	}
	return args
}

// madeWith is the beginning of the line that contains the command that created the CDI file.
const madeWith = "# Made with: "

// command returns the command that creates the CDI file.
func (o Options) command() string {
	words := []string{"rdma-spec cdi generate --devices", strings.Join(o.Devices, ",")}
	if o.Memlock == 0 {
		words = append(words, "--memlock", memlockNone)
	} else {
		words = append(words, "--memlock", o.Memlock.String(), "--hook", o.Hook)
	}
	if o.Required {
		words = append(words, "--required")
	}
	if o.Kubernetes {
		words = append(words, "--kubernetes")
	}
	if o.Management {
		words = append(words, "--management")
	}
	return strings.Join(words, " ")
}

// optionsOf returns the options of the command in a CDI file's text.
func optionsOf(text string) (o Options, found bool) {
	for line := range strings.Lines(text) {
		command, found := strings.CutPrefix(strings.TrimSpace(line), madeWith)
		words := strings.Fields(command)
		if !found || len(words) < 3 {
			continue
		}
		var flags Flags
		set := pflag.NewFlagSet("", pflag.ContinueOnError)
		set.Usage = func() {}
		flags.AddFlags(set)
		if err := set.Parse(words[3:]); err != nil {
			return o, false
		}
		o, err := flags.Options()
		return o, err == nil
	}
	return o, false
}
