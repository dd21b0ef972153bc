// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package inventory keeps what is known of a node's HCAs, so that no request reads a file of one: an HCA asks its firmware for
// the state of a port, and a sick one can take seconds to answer. It knows nothing of containers.
package inventory

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

const (
	// every is the time between two readings where nothing changes in /dev/infiniband.
	every = 10 * time.Second
	// patience is how long a reading waits for an HCA before it goes on without it.
	patience = 200 * time.Millisecond
	// silence is after how long an HCA is said not to answer: less may be the node's load.
	silence = 2 * time.Second
	// atOnce is how many HCAs are asked at once, without those that do not answer.
	atOnce = 4
)

// neverAnswered is what is said of an HCA of which nothing is known.
const neverAnswered = "it has not answered since the plugin started: it may be hung, see the kernel's log"

// Inventory is what is known of a node's HCAs. It is safe for concurrent use.
type Inventory struct {
	root   string
	budget time.Duration
	log    logrus.FieldLogger
	list   func() (*hca.Node, error)
	read   func(name string) hca.HCA

	numbers atomic.Pointer[hca.Numbers]
	latest  atomic.Pointer[snapshot]
	first   chan struct{} // closed once there is a snapshot

	mu     sync.Mutex
	listed *hca.Node // the HCAs that there are, and their devices
	stamp  time.Time // of the devices when they were listed
	known  map[string]*known
	blind  error // why numbers cannot be looked up
	failed string
}

// snapshot is never changed.
type snapshot struct {
	node  *hca.Node
	stamp time.Time             // of the devices, as they were listed
	owner map[hca.Number]string // the HCA of each device
	err   error                 // there is no node
}

// known is what is known of an HCA.
type known struct {
	hca      hca.HCA
	since    time.Time // when it was read, or, where it never was, first asked
	answered bool
	asked    bool // a read is outstanding
	late     bool // a reading has gone on without it
	told     bool // the log says that it does not answer
}

// New makes an inventory of the node at root. It is empty until Run; HCAs waits no longer than the budget for it to be read.
func New(root string, budget time.Duration, log logrus.FieldLogger) *Inventory {
	i := &Inventory{
		root: root, budget: budget, log: log, first: make(chan struct{}), known: map[string]*known{},
		list: func() (*hca.Node, error) { return hca.List(root) },
		read: func(name string) hca.HCA { return hca.Read(root, name) },
	}
	i.openNumbers()
	return i
}

// Run reads the node's HCAs until the context is done: at once, when /dev/infiniband changes, and every 10 s.
func (i *Inventory) Run(ctx context.Context) {
	devices := watch(i.root)
	defer devices.close()
	i.follow(ctx, devices)
}

func (i *Inventory) follow(ctx context.Context, devices *watcher) {
	again := time.NewTicker(every)
	defer again.Stop()
	for {
		devices.look()
		i.readAll()
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		case <-devices.changed:
			select { // one change seldom comes alone
			case <-ctx.Done():
				return
			case <-time.After(patience):
			}
		}
	}
}

// HCAs gives the node as it was last read; nobody may change it. An HCA that does not answer is as it last was, and has Unread
// where it never answered. The node is Stale where a device has come or gone since. Before the node is read for the first time, HCAs
// waits for that within the budget.
func (i *Inventory) HCAs() (*hca.Node, error) {
	s := i.latest.Load()
	if s == nil {
		select {
		case <-i.first:
			s = i.latest.Load()
		case <-time.After(i.budget):
			return nil, fmt.Errorf("the HCAs of this node have not been read yet after %s: try again", i.budget)
		}
	}
	if s.err == nil && !s.stamp.Equal(devicesChanged(i.root)) {
		stale := *s.node
		stale.Stale = true
		return &stale, nil
	}
	return s.node, s.err
}

// Verbs says whether a character device number is a verbs device of this node. It reads one link and asks no HCA. The
// device's HCA is "" where it is not known yet.
func (i *Inventory) Verbs(n hca.Number) (hca.Device, bool, error) {
	numbers := i.numbers.Load()
	if numbers == nil {
		return hca.Device{}, false, i.Blind()
	}
	d, ok, err := numbers.Verbs(n)
	if s := i.latest.Load(); ok && s != nil {
		d.HCA = s.owner[n]
	}
	return d, ok, err
}

// Blind says why device numbers cannot be looked up on this node; nil where they can.
func (i *Inventory) Blind() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.blind
}

// openNumbers proves that device numbers can be looked up, if that has not been proved yet.
func (i *Inventory) openNumbers() {
	if i.numbers.Load() != nil {
		return
	}
	numbers, err := hca.OpenNumbers(i.root)
	i.mu.Lock()
	defer i.mu.Unlock()
	if err != nil {
		if i.blind == nil || i.blind.Error() != err.Error() {
			i.log.Errorf("not ready, since no container's devices can be recognised: %v", err)
		}
		i.blind = err
		return
	}
	if i.blind != nil {
		i.log.Info("device numbers can be looked up now")
	}
	i.blind = nil
	i.numbers.Store(numbers)
}

// readAll reads the node. HCAs that do not answer within their time are left behind, and asked again once they have answered.
func (i *Inventory) readAll() {
	i.openNumbers()
	stamp := devicesChanged(i.root)
	node, err := i.list()
	if err != nil {
		i.notListed(err)
		return
	}
	names := i.take(node, stamp)
	var reads errgroup.Group
	reads.SetLimit(atOnce)
	for _, name := range names {
		reads.Go(func() error {
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				i.answer(name, i.read(name))
			}()
			select {
			case <-answered:
			case <-time.After(patience):
			}
			return nil
		})
	}
	_ = reads.Wait()
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, k := range i.known {
		if k.asked && !k.late {
			k.late = true
			time.AfterFunc(silence, i.tell)
		}
	}
	i.publish()
}

// notListed keeps what was known where the HCAs cannot be listed.
func (i *Inventory) notListed(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.failed != err.Error() {
		i.log.Errorf("the HCAs of this node cannot be listed: %v", err)
	}
	i.failed = err.Error()
	if s := i.latest.Load(); s == nil || s.err != nil {
		i.put(&snapshot{err: err})
	}
}

// take takes over which HCAs there are, and gives those that are to be asked: all of which no read is outstanding.
func (i *Inventory) take(node *hca.Node, stamp time.Time) (names []string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.listed, i.stamp, i.failed = node, stamp, ""
	gone := maps.Clone(i.known)
	for _, h := range node.HCAs {
		delete(gone, h.Name)
		k := i.known[h.Name]
		if k == nil {
			k = &known{since: time.Now()}
			i.known[h.Name] = k
		}
		if !k.asked { // guard: one read outstanding
			k.asked = true
			names = append(names, h.Name)
		}
	}
	for name, k := range gone {
		if !k.asked {
			delete(i.known, name)
		}
	}
	return names
}

// answer takes in what was read of an HCA.
func (i *Inventory) answer(name string, h hca.HCA) {
	i.mu.Lock()
	defer i.mu.Unlock()
	k := i.known[name]
	late, told := k.late, k.told
	*k = known{hca: h, since: time.Now(), answered: true}
	if told {
		i.log.WithField("hca", name).Info("the HCA answers again")
	}
	if late {
		i.publish()
	}
}

// tell says once of each HCA that it does not answer.
func (i *Inventory) tell() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for name, k := range i.known {
		if !k.late || k.told || time.Since(k.since) < silence {
			continue
		}
		k.told = true
		log := i.log.WithFields(logrus.Fields{"hca": name, "age": time.Since(k.since).Round(time.Millisecond)})
		if k.answered {
			log.Warn("the HCA does not answer: it counts as it was when it last did; see the kernel's log")
		} else {
			log.Warn("the HCA does not answer and never did: containers that ask for all HCAs are refused; see the kernel's log")
		}
	}
}

// publish makes what is known what HCAs gives.
func (i *Inventory) publish() {
	node := i.listed.Complete(func(name string) hca.HCA {
		k := i.known[name]
		if !k.answered {
			return hca.HCA{Name: name, NUMANode: -1, Ports: []hca.Port{}, Unread: neverAnswered}
		}
		return k.hca
	})
	owner := map[hca.Number]string{}
	for _, h := range node.HCAs {
		for _, d := range h.Devices {
			owner[d.Number] = h.Name
		}
	}
	i.put(&snapshot{node: node, stamp: i.stamp, owner: owner})
}

func (i *Inventory) put(s *snapshot) {
	if i.latest.Swap(s) == nil {
		close(i.first)
	}
}
