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

// Options select the node, the runtime, and the policy with which containers are compared.
type Options struct {
	Config     string            `json:"config,omitempty"`
	Root       string            `json:"root,omitempty"`
	Endpoint   string            `json:"endpoint,omitempty"`
	Timeout    time.Duration     `json:"-"` // for all daemons together; 0 means askRuntimesFor
	Pods       []string          `json:"-"` // NAMESPACE/POD: examine only the containers of these pods
	Inside     bool              `json:"-"` // examine the view of the containers' processes
	Use        bool              `json:"-"` // examine which processes use RDMA
	QueuePairs bool              `json:"-"` // also examine queue pairs, which the kernel queries one by one
	Keep       bool              `json:"-"` // read everything that an archive keeps
	Processes  *limits.Processes `json:"-"` // nil: the processes under the root; tests set other processes
}

// Limits are the limits of the node's processes.
func (o Options) Limits() *limits.Processes {
	if o.Processes != nil {
		return o.Processes
	}
	return limits.New(o.Root)
}

// Each returns ItemTimeout, increased in proportion to a longer timeout for all daemons.
func (o Options) Each() time.Duration { return max(ItemTimeout, o.Timeout/(Daemons/ItemTimeout)) }

// AddFlags adds the flags that select the policy, the node, and the runtime.
func (o *Options) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.Config, "config", "", "use this configuration `FILE` instead of the policy in force")
	addArchiveFlag(f, &o.Root, "the node's /sys, /proc, /run, /etc, and /var") // Open checks this directory
	f.StringVar(&o.Endpoint, "runtime-endpoint", "", "query only the runtime with this CRI `SOCKET`")
}

// The help texts that status and repair share.
const (
	WhichPolicy = `The command uses the policy in force, which the registered plugin writes to
` + inforce.File + `. If no plugin is running, specify a configuration with --config.
The command never assumes the built-in defaults.`
	WhichRuntime = `The command queries all CRI runtimes whose sockets are at the usual paths. To query only one
runtime, set --runtime-endpoint, CONTAINER_RUNTIME_ENDPOINT, or runtime-endpoint in
/etc/crictl.yaml.`
)

// KeptPolicy is a policy in the form that an archive keeps.
type KeptPolicy struct {
	JudgedBy
	Config policy.Config `json:"config"`
}

// JudgedBy identifies the policy with which containers are compared.
type JudgedBy struct {
	// File is the path of the policy in force or of the configuration.
	File string `json:"file"`
	// Source is the path from which the plugin read the policy in force.
	Source string `json:"source,omitempty"`
}

// String implements fmt.Stringer.
func (j JudgedBy) String() string {
	if j.Source == "" {
		return j.File
	}
	return fmt.Sprintf("%s, in force, from %s", j.File, j.Source)
}

// Policy returns the policy from --config, or else the policy in force. In a copy of a node, the policy in force is the
// policy that the copy contains.
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

// PolicyFor returns the policy that applies to a pod. If config is set, the policy comes from this configuration file.
// Otherwise, it is the policy in force. If no plugin is running, or for another node's HCAs, it is the policy with
// which the plugin would start.
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

// Command returns the command line of another command for the same node and policy.
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

// PodArgs accepts the names of pods as arguments.
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
	const within = 3 * time.Second // the user is waiting
	ctx, cancel := context.WithTimeout(cmd.Context(), within)
	defer cancel()
	runtimes, _, err := cri.Connect(ctx, o.Endpoint, o.Root, o.Each())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, r := range runtimes {
		pods, _ := r.Pods(ctx) // a runtime that does not respond completes nothing
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
	// isNode marks the flag if a directory that is not a copy of a node is rejected before the command runs.
	isNode = "is-node"
)

// AddRootFlag adds the flag --root to a command that only reads the node. The flag's value is a directory, or an
// archive from rdma-spec collect. The text lists the directories to read: "the node's /sys and /dev".
func AddRootFlag(f *pflag.FlagSet, root *string, what string) {
	addArchiveFlag(f, root, what)
	f.Lookup(rootFlag).Annotations[isNode] = []string{}
}

// addArchiveFlag adds --root to a command that opens the node with Open.
func addArchiveFlag(f *pflag.FlagSet, root *string, what string) {
	f.StringVar(root, rootFlag, "/", "read "+what+" under this `DIR`, or from the support bundle FILE.tar.gz")
	f.Lookup(rootFlag).Annotations = map[string][]string{readsArchives: {}}
}

// OpenRoot unpacks the archive in the command's --root, if it is an archive, and sets the flag to the temporary
// directory. release removes the temporary directory. A directory that is not a copy of a node is an error, except if
// Open checks the directory.
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

// checkCopy rejects a directory without a node's files. Otherwise, commands would report the missing files as facts
// about the node.
func checkCopy(dir string) error {
	for _, has := range []string{"sys", "etc"} {
		if _, err := os.Stat(filepath.Join(dir, has)); !errors.Is(err, fs.ErrNotExist) {
			return nil // an unreadable file exists
		}
	}
	return fmt.Errorf("--root %s is not a copy of a node: the directory has neither sys nor etc", dir)
}

// HCANames completes the last name in a list of HCAs under a root, with the HCAs that are not yet in the list.
func HCANames(root *string, others ...string) func(typed string) []string {
	return func(typed string) (words []string) {
		before := typed[:strings.LastIndexByte(typed, ',')+1]
		if before == "" {
			words = slices.Clip(others)
		}
		node, err := hca.List(*root) // queries no HCA
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
