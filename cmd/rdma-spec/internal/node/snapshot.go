// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package node reads a node into a Snapshot, from the live node or from a support bundle. From a Snapshot and a policy,
// it computes what each container should have. It changes nothing on the node.
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

// What takes longer than its time is unknown, and costs the others nothing.
const (
	// Daemons is how long all daemons together may take, which are asked side by side. node-problem-detector and kubectl
	// rdma give up after 20 s.
	Daemons = 10 * time.Second
	// ItemTimeout is how long one of many things may take: an HCA, a file, one of several runtimes, the kubelet for a
	// pod.
	ItemTimeout = 2 * time.Second
	// askRuntimesFor is how long a part may take where no timeout is given: a runtime lists all containers.
	askRuntimesFor = 20 * time.Second
)

// lateError means that something did not answer in time.
type lateError string

func (e lateError) Error() string { return string(e) }

// Snapshot is all that is known of a node. Each part is read when it is first asked for, once, and the error says why
// it is unknown.
type Snapshot struct {
	Options
	Files    files.Tree
	Archived bool // it is a copy of rdma-spec collect

	HCAs       func() (*hca.Inventory, error) // one that does not answer is Unread
	KernelLog  func() (KernelLog, error)
	Runtimes   func() (runtime.Runtimes, error)
	Plugin     func() (agents.Plugin, error)
	Kubelet    func() (agents.Kubelet, error)
	Configured func() (goal.Configured, error)
	CDI        func() (cdi.Files, error)
	RDMACNI    func() (RDMACNI, error)
	RDMA       func() (rdma.Inventory, error) // who uses the HCAs
	Ignored    func() ([]Ignored, error)
	JudgedBy   func() (KeptPolicy, error) // the policy that was asked for; the error says why there is none
	Listing    func() (Listing, error)
	Containers func() (Containers, error) // the Listing, judged

	// ReadHCAs reads the HCAs; nil reads them in this process, and waits for all of a copy.
	ReadHCAs HCAReader
	// Undeclared hears of what a check of the doctor reads without declaring it; nil in programs.
	Undeclared func(error)
	parts      []func() Answer
	gids       sync.Map // by port, functions that read its table
	asked      sync.Map // the names of the parts that are being read
}

// Answer is a part, or why there is none. The files in AnswersDir have this form.
type Answer struct {
	Name  string          `json:"-"`
	JSON  json.RawMessage `json:"answer,omitempty"`
	Error string          `json:"error,omitempty"`
	Late  bool            `json:"-"` // it was not read in time
}

// AnswersDir is where an archive has the parts.
const AnswersDir = "rdma-spec/answers"

// Inventory are the files that HCAs are read from, as patterns.
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

// Open opens the node below a root: a live one, or a copy where it has an AnswersDir. A directory that is not a copy of
// a node is an error.
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
			"no runtime listed its containers in time", s.readContainers)
	})
	return s, nil
}

// Close closes the node.
func (s *Snapshot) Close() error { return s.Files.Close() }

// cachedAnswer returns a function that reads a part once: from the archive, else live.
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

// unlessHidden makes what reads a part of daemons fail for users who can see neither them nor their sockets.
func unlessHidden[T any](live func(context.Context, string) (T, error)) func(context.Context, string) (T, error) {
	return func(ctx context.Context, root string) (value T, err error) {
		if _, err := os.Readlink(filepath.Join(root, "proc/1/exe")); os.Geteuid() != 0 && errors.Is(err, fs.ErrPermission) {
			return value, errors.New("processes of other users are not visible: run as root")
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

// Within returns what a function answers, or an error that begins with what is late where that takes longer than the
// timeout, and a moment to say what was late: then the function is left to itself.
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

// moment is the part of the timeout in which a function can still answer.
const moment = 10

// SayLate says on a writer, after a while, which parts have not answered, until it is stopped.
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
			fmt.Fprintf(stderr, "rdma-spec: no response yet to the queries for %s: waiting for at most %s\n",
				strings.Join(late, ", "), cmp.Or(s.Timeout, askRuntimesFor))
		}
	})
	return func() { close(ended); telling.Wait() }
}

// Answers returns all parts as an archive keeps them. They are read at once: what does not answer costs its timeout
// once.
func (s *Snapshot) Answers() []Answer {
	answers := make([]Answer, len(s.parts))
	var reading sync.WaitGroup
	for i, read := range s.parts {
		reading.Go(func() { answers[i] = read() })
	}
	reading.Wait()
	return answers
}

// always are directories that every node has: a container sees one only if it is mounted there, and a copy has it if
// its maker saw it.
var always = []string{"sys/bus", "sys/fs/cgroup"}

// NotFromHere ends the text of what is unknown because a container does not have it. kubectl-rdma knows it by its first
// words.
const NotFromHere = "not visible from here: run the doctor on the node itself"

// Reaches returns an error where the directory that has a file, or what matches a pattern, is not there.
func (s *Snapshot) Reaches(name string) error {
	for _, dir := range always {
		if !strings.HasPrefix(name, dir+"/") {
			continue
		}
		if _, err := s.Files.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("/%s %s", dir, NotFromHere)
		}
	}
	return nil
}
