// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package node reads a node into a Snapshot, from the live node or from a support bundle. From a Snapshot and a policy,
// the package computes the grant of each container. It changes nothing on the node.
package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/agents"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/archive"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cdi"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/goal"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/rdma"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
	"github.com/rdma-spec/rdma-spec/spec/files"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// If a read exceeds its timeout, the result is unknown. Other reads are not affected.
const (
	// Daemons is the timeout for all daemons together. The daemons are queried concurrently. node-problem-detector and
	// kubectl rdma give up after 20 s.
	Daemons = 10 * time.Second
	// ItemTimeout is the timeout for one of many items: an HCA, a file, one of several runtimes, or the kubelet's response
	// for a pod.
	ItemTimeout = 2 * time.Second
	// askRuntimesFor is the default timeout for a part. It is long enough for a runtime to list all containers.
	askRuntimesFor = 20 * time.Second
)

// lateError means that a query exceeded its timeout.
type lateError string

func (e lateError) Error() string { return string(e) }

// Snapshot contains all information about a node. Each part is read once, at its first use. If a part is unknown, the
// error is the reason.
type Snapshot struct {
	Options
	Files    files.Tree
	Archived bool // the node is a copy from rdma-spec collect

	HCAs       func() (*hca.Inventory, error) // Unread is set for an HCA that does not respond
	KernelLog  func() (KernelLog, error)
	Runtimes   func() (runtime.Runtimes, error)
	Plugin     func() (agents.Plugin, error)
	Kubelet    func() (agents.Kubelet, error)
	Configured func() (goal.Configured, error)
	CDI        func() (cdi.Files, error)
	RDMACNI    func() (RDMACNI, error)
	RDMA       func() (rdma.Inventory, error) // the users of the HCAs
	Ignored    func() ([]Ignored, error)
	JudgedBy   func() (KeptPolicy, error) // the policy; the error is why there is none
	Listing    func() (Listing, error)
	Containers func() (Containers, error) // the Listing, compared with the policy

	// ReadHCAs reads the HCAs. If it is nil, the HCAs are read in this process. For a copy of a node, the read has no
	// timeout.
	ReadHCAs HCAReader
	// Undeclared is called when a check of the doctor reads a file that the check does not declare. It is nil in programs.
	Undeclared func(error)
	parts      []func() Answer
	gids       sync.Map // maps each port to a function that reads its table
	asked      sync.Map // the names of the parts that are being read
}

// Answer is a part, or the reason why it is missing. The files in AnswersDir have this format.
type Answer struct {
	Name  string          `json:"-"`
	JSON  json.RawMessage `json:"answer,omitempty"`
	Error string          `json:"error,omitempty"`
	Late  bool            `json:"-"` // the part was not read in time
}

// AnswersDir is the directory of the parts in an archive.
const AnswersDir = "rdma-spec/answers"

// Inventory lists patterns for the files from which HCAs are read.
var Inventory = []string{
	"dev/infiniband/*", "dev/hfi1_*", hca.DeviceTable,
	"sys/class/infiniband/*", "sys/class/infiniband/*/*", "sys/class/infiniband/*/ports/*/*",
	"sys/class/infiniband/*/ports/*/gid_attrs/ndevs/*",
	"sys/class/infiniband/*/device/driver", "sys/class/infiniband/*/device/physfn",
	"sys/class/infiniband/*/device/numa_node",
	"sys/class/infiniband/*/device/net/*/*",
	"sys/class/infiniband_verbs/*/*", "sys/class/infiniband_mad/*/*", "sys/class/hfi1_user/*/dev",
	"sys/class/misc/rdma_cm/dev",
	"sys/class/net/*/*", "sys/module/ib_core/parameters/netns_mode",
}

// Open opens the node under a root. If the root contains AnswersDir, the node is a copy. Otherwise, it is a live node.
// A directory that is not a copy of a node is an error.
func Open(o Options) (*Snapshot, error) {
	t, err := files.Open(o.Root)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{Options: o, Files: t}
	_, err = t.Stat(AnswersDir)
	s.Archived = err == nil
	if !s.Archived {
		if err := checkCopy(o.Root); err != nil {
			return nil, err
		}
	}
	s.HCAs = sync.OnceValues(s.readHCAs)
	s.KernelLog = cachedAnswer(s, "kernel-log.json", readKernelLog)
	s.Runtimes = cachedAnswer(s, "runtimes.json", unlessHidden(runtime.Read))
	s.Plugin = cachedAnswer(s, "plugin.json", unlessHidden(func(_ context.Context, root string) (agents.Plugin, error) {
		return agents.ReadPlugin(root, cli.Version), nil
	}))
	s.Kubelet = cachedAnswer(s, "kubelet.json", unlessHidden(agents.ReadKubelet))
	s.Configured = cachedAnswer(s, "configured.json", goal.Read)
	s.CDI = cachedAnswer(s, "cdi.json", func(ctx context.Context, root string) (cdi.Files, error) {
		return cdi.Read(ctx, root, s.HCAs)
	})
	s.RDMACNI = cachedAnswer(s, "rdma-cni.json", func(context.Context, string) (RDMACNI, error) {
		return readRDMACNI(t), nil
	})
	s.RDMA = cachedAnswer(s, "rdma.json", func(ctx context.Context, root string) (rdma.Inventory, error) {
		if err := s.Limits().Changeable(); err != nil {
			return rdma.Inventory{}, fmt.Errorf("%w: for the DaemonSet's pods, set hostPID: true in the chart's values", err)
		}
		return rdma.Read(ctx, root, s.QueuePairs)
	})
	s.Ignored = cachedAnswer(s, "ignored.json", s.readIgnored)
	s.JudgedBy = cachedAnswer(s, "policy.json", func(context.Context, string) (KeptPolicy, error) {
		p, source, err := o.readPolicy()
		if err != nil {
			return KeptPolicy{}, err
		}
		return KeptPolicy{source, p.Config()}, nil
	})
	s.Listing = cachedAnswer(s, "listing.json", s.list)
	s.Containers = sync.OnceValues(func() (Containers, error) {
		return Within(context.Background(), cmp.Or(s.Timeout, askRuntimesFor)+2*ItemTimeout,
			"no runtime listed its containers", s.readContainers)
	})
	return s, nil
}

// Close closes the node.
func (s *Snapshot) Close() error { return s.Files.Close() }

// cachedAnswer returns a function that reads a part once, from the archive or from the live node.
func cachedAnswer[T any](s *Snapshot, name string,
	live func(ctx context.Context, root string) (T, error)) func() (T, error) {
	value := sync.OnceValues(func() (T, error) {
		if s.Archived {
			return readArchived[T](s.Files, name)
		}
		about := strings.TrimSuffix(name, ".json")
		s.asked.Store(about, nil)
		defer s.asked.Delete(about)
		return Within(context.Background(), cmp.Or(s.Timeout, askRuntimesFor), "no response to the query for "+about,
			func(ctx context.Context) (T, error) { return live(ctx, s.Root) })
	})
	s.parts = append(s.parts, func() (a Answer) {
		a.Name = name
		v, err := value()
		if err == nil {
			a.JSON, err = json.Marshal(v)
		}
		if err != nil {
			a.Error = err.Error()
			a.Late = errors.As(err, new(lateError))
		}
		return a
	})
	return value
}

// unlessHidden returns a function that fails for users who cannot see other users' processes, and otherwise calls live.
func unlessHidden[T any](live func(context.Context, string) (T, error)) func(context.Context, string) (T, error) {
	return func(ctx context.Context, root string) (value T, err error) {
		if _, err := os.Readlink(filepath.Join(root, "proc/1/exe")); os.Geteuid() != 0 && errors.Is(err, fs.ErrPermission) {
			return value, errors.New("processes of other users are not visible: run the command as root")
		}
		return live(ctx, root)
	}
}

// readArchived reads a part from an archive.
func readArchived[T any](t files.Tree, name string) (value T, err error) {
	var a Answer
	text, err := t.Read(path.Join(AnswersDir, name), archive.MaxFile)
	if err == nil {
		err = json.Unmarshal(text, &a)
	}
	switch {
	case err != nil:
		return value, fmt.Errorf("the support bundle contains no response for %s", name)
	case a.Error != "":
		return value, errors.New(a.Error)
	}
	return value, json.Unmarshal(a.JSON, &value)
}

// Within calls a function with a timeout and returns its results. If the function exceeds the timeout by more than a
// moment, Within returns an error that begins with late, and does not wait for the function. The moment lets the
// function report its own timeout error.
func Within[T any](ctx context.Context, timeout time.Duration, late string,
	live func(context.Context) (T, error)) (value T, err error) {
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	done := make(chan struct{})
	var read T
	var failed error
	go func() {
		defer close(done)
		read, failed = live(bounded)
	}()
	select {
	case <-done:
		return read, failed
	case <-ctx.Done():
	case <-time.After(timeout + timeout/moment):
	}
	return value, lateError(fmt.Sprintf("%s within %s", late, timeout))
}

// moment is the divisor of the timeout that yields the extra time for a function's result.
const moment = 10

// SayLate writes the names of the parts without a response to stderr after ItemTimeout, unless stop is called first.
func (s *Snapshot) SayLate(stderr io.Writer) (stop func()) {
	ended := make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		select {
		case <-ended:
			return
		case <-time.After(ItemTimeout):
		}
		var late []string
		s.asked.Range(func(name, _ any) bool { late = append(late, fmt.Sprint(name)); return true })
		slices.Sort(late)
		if len(late) > 0 {
			fmt.Fprintf(stderr, "rdma-spec: no response yet to the queries for %s: waiting up to %s\n",
				strings.Join(late, ", "), cmp.Or(s.Timeout, askRuntimesFor))
		}
	})
	return func() { close(ended); telling.Wait() }
}

// Answers returns all parts in the form that an archive keeps. It reads the parts concurrently, so timeouts do not add
// up.
func (s *Snapshot) Answers() []Answer {
	answers := make([]Answer, len(s.parts))
	var reading sync.WaitGroup
	for i, read := range s.parts {
		reading.Go(func() { answers[i] = read() })
	}
	reading.Wait()
	return answers
}

// always lists directories that every node has. In a container, such a directory is visible only if it is mounted. A
// copy of a node contains the directory only if it was visible to rdma-spec collect.
var always = []string{"sys/bus", "sys/fs/cgroup"}

// NotFromHere is the end of the message about a file that is unknown because it is not mounted in the container.
// kubectl-rdma recognizes the message by the first words of NotFromHere.
const NotFromHere = "not visible from here: run the doctor on the node itself"

// Reaches returns an error if the directory for a file name or pattern is missing.
func (s *Snapshot) Reaches(name string) error {
	for _, dir := range always {
		if !strings.HasPrefix(name, dir+"/") {
			continue
		}
		if _, err := s.Files.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("/%s is %s", dir, NotFromHere)
		}
	}
	return nil
}
