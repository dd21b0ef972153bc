// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/archive"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri"
	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/policy/inforce"
	"github.com/rdma-spec/rdma-spec/spec/files"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// Options choose the node, the runtime, and the policy that containers are judged by.
type Options struct {
	Config     string            `json:"config,omitempty"`
	Root       string            `json:"root,omitempty"`
	Endpoint   string            `json:"endpoint,omitempty"`
	Timeout    time.Duration     `json:"-"` // with all daemons together; 0 for askRuntimesFor
	Pods       []string          `json:"-"` // NAMESPACE/POD: look at the containers of these only
	Inside     bool              `json:"-"` // look at what the processes of containers see
	Use        bool              `json:"-"` // look at who uses RDMA
	QueuePairs bool              `json:"-"` // and at queue pairs, each of which the kernel queries
	Keep       bool              `json:"-"` // ask for all that an archive keeps
	Processes  *limits.Processes `json:"-"` // nil: those below the root. Tests have others
}

// Limits are the limits of the node's processes.
func (o Options) Limits() *limits.Processes {
	if o.Processes != nil {
		return o.Processes
	}
	return limits.New(o.Root)
}

// Each is ItemTimeout, or as much longer as all daemons together may take longer.
func (o Options) Each() time.Duration { return max(ItemTimeout, o.Timeout/(Daemons/ItemTimeout)) }

// AddFlags adds the flags that choose the policy, the node and the runtime.
func (o *Options) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.Config, "config", "", "use this configuration `FILE` instead of the policy in force")
	addArchiveFlag(f, &o.Root, "the node's /sys, /proc, /run, /etc, and /var") // Open refuses what is not a copy of a node
	f.StringVar(&o.Endpoint, "runtime-endpoint", "", "query only the runtime with this CRI `SOCKET`")
}

// What status and repair share in their help.
const (
	WhichPolicy = `The command uses the policy in force, which the registered plugin writes to
` + inforce.File + `. If no plugin is running, specify a configuration with --config.
The built-in defaults are never assumed.`
	WhichRuntime = `The command queries all runtimes that serve CRI at the usual paths. To query only one, set
--runtime-endpoint, CONTAINER_RUNTIME_ENDPOINT, or runtime-endpoint in /etc/crictl.yaml.`
)

// KeptPolicy is a policy as an archive keeps it.
type KeptPolicy struct {
	JudgedBy
	Config policy.Config `json:"config"`
}

// JudgedBy names the policy that containers are judged by.
type JudgedBy struct {
	// File is the path of the policy in force or of the configuration.
	File string `json:"file"`
	// Source is where the plugin read the policy in force.
	Source string `json:"source,omitempty"`
}

// String implements fmt.Stringer.
func (j JudgedBy) String() string {
	if j.Source == "" {
		return j.File
	}
	return fmt.Sprintf("%s, in force, from %s", j.File, j.Source)
}

// Policy returns the configuration that is named, else the policy in force: in a copy, the one that the copy was made
// with.
func (s *Snapshot) Policy() (*policy.Policy, JudgedBy, error) {
	if s.Config != "" || !s.Archived {
		return s.readPolicy()
	}
	kept, err := s.JudgedBy()
	if err != nil {
		return nil, JudgedBy{}, s.inCopy(err)
	}
	p, err := policy.New(kept.Config)
	return p, kept.JudgedBy, err
}

// PolicyFor returns the policy that decides what a pod gets: that of a configuration file; where that is "", the one in
// force, wherever the plugin has it from; where no plugin runs, and for another node's HCAs, the one that the plugin
// would start with.
func (s *Snapshot) PolicyFor(config string, another bool) (p *policy.Policy, source string, err error) {
	if config == "" && !another {
		current, judgedBy, err := s.Policy()
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, inforce.ErrEnded) {
			return current, judgedBy.String(), err
		}
	}
	return policy.LoadOr(config, files.Below(s.Root, policy.ConfigFile))
}

// readPolicy is Policy on a live node.
func (o Options) readPolicy() (*policy.Policy, JudgedBy, error) {
	if o.Config != "" {
		p, err := policy.Load(o.Config)
		return p, JudgedBy{File: o.Config}, err
	}
	current, err := inforce.Read(o.Root)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, JudgedBy{}, fmt.Errorf("%w: start nri-rdma, or specify a configuration with --config", err)
	case err != nil:
		return nil, JudgedBy{}, fmt.Errorf("%w: specify a configuration with --config", err)
	}
	return current.Policy, JudgedBy{File: current.Path, Source: current.Source}, nil
}

// Command returns the command line that does something else with the same node and policy.
func (o Options) Command(words ...string) string {
	line := []string{"rdma-spec", words[0]}
	for _, flag := range [][2]string{{"--config", o.Config}, {"--root", o.Root}, {"--runtime-endpoint", o.Endpoint}} {
		if flag[1] != "" && flag != [2]string{"--root", "/"} {
			line = append(line, flag[0], cli.ShellWord(flag[1]))
		}
	}
	return strings.Join(append(line, words[1:]...), " ")
}

var podName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)

// PodArgs takes the names of pods as arguments.
func PodArgs(_ *cobra.Command, args []string) error {
	for _, name := range args {
		if !podName.MatchString(name) {
			return cli.Usage(fmt.Errorf("%q is not the name of a pod: write NAMESPACE/POD, such as ml/train-0", name))
		}
	}
	return nil
}

// CompletePods completes the names of the node's pods.
func (o *Options) CompletePods(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	const within = 3 * time.Second // whoever presses the key waits
	ctx, cancel := context.WithTimeout(cmd.Context(), within)
	defer cancel()
	runtimes, _, err := cri.Connect(ctx, o.Endpoint, o.Root, o.Each())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, r := range runtimes {
		pods, _ := r.Pods(ctx) // one that does not answer completes nothing
		names = append(names, pods...)
		r.Close()
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool { return slices.Contains(args, name) }),
		cobra.ShellCompDirectiveNoFileComp
}

const (
	rootFlag = "root"
	// readsArchives marks the flag of a command that only reads the node, as an annotation.
	readsArchives = "reads-archives"
	// isNode marks it where a directory that is not a copy of a node is refused before the command runs.
	isNode = "is-node"
)

// AddRootFlag adds the flag --root to a command that only reads the node: it names a directory, or an archive of
// rdma-spec collect. The text says what is read there: "the node's /sys and /dev".
func AddRootFlag(f *pflag.FlagSet, root *string, what string) {
	addArchiveFlag(f, root, what)
	f.Lookup(rootFlag).Annotations[isNode] = []string{}
}

// addArchiveFlag adds --root to a command that opens the node by Open.
func addArchiveFlag(f *pflag.FlagSet, root *string, what string) {
	f.StringVar(root, rootFlag, "/", "read "+what+" under this `DIR`, or from the support bundle FILE.tar.gz")
	f.Lookup(rootFlag).Annotations = map[string][]string{readsArchives: {}}
}

// OpenRoot unpacks the archive that the command's --root names, if it names one, and sets the flag to the temporary
// directory. release removes that. A directory that is not a copy of a node is an error, except where Open looks.
func OpenRoot(cmd *cobra.Command) (release func() error, err error) {
	release = func() error { return nil }
	flag := cmd.Flags().Lookup(rootFlag)
	if flag == nil || flag.Annotations[readsArchives] == nil {
		return release, nil
	}
	dir, remove, err := archive.Open(flag.Value.String())
	if err != nil {
		return release, fmt.Errorf("--root: %w", err)
	}
	if dir == flag.Value.String() {
		if flag.Annotations[isNode] != nil {
			err = checkCopy(dir)
		}
		return release, err
	}
	return remove, flag.Value.Set(dir)
}

// checkCopy refuses a directory that has nothing of a node: what is not there would be said of the node.
func checkCopy(dir string) error {
	for _, has := range []string{"sys", "etc"} {
		if _, err := os.Stat(filepath.Join(dir, has)); !errors.Is(err, fs.ErrNotExist) {
			return nil // one that cannot be read is there
		}
	}
	return fmt.Errorf("--root %s: not a copy of a node: it has neither sys nor etc", dir)
}

// HCANames completes a list of HCAs below a root: the last name in it, by those that are not in it yet.
func HCANames(root *string, others ...string) func(typed string) []string {
	return func(typed string) (words []string) {
		before := typed[:strings.LastIndexByte(typed, ',')+1]
		if before == "" {
			words = slices.Clip(others)
		}
		node, err := hca.List(*root) // which asks no HCA
		if err != nil {
			return words
		}
		for _, h := range node.HCAs {
			if !strings.Contains(","+before, ","+h.Name+",") {
				words = append(words, before+h.Name)
			}
		}
		return words
	}
}
