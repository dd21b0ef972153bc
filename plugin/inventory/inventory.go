// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package inventory keeps what is known of a node's HCAs, so that no request reads a file of one: an HCA asks its
// firmware for the state of a port, and a sick one can take seconds to answer. It knows nothing of containers.
package inventory

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"github.com/rdma-spec/rdma-spec/plugin/watch"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

const (
	// every is the time between two readings if nothing changes in /dev/infiniband.
	every = 10 * time.Second
	// patience is how long a reading waits for an HCA before it goes on without it.
	patience = 200 * time.Millisecond
	// silence is the time after which the log says that an HCA does not answer: less may be the node's load.
	silence = 2 * time.Second
	// atOnce is how many HCAs are asked at once, without those that do not answer.
	atOnce = 4
)

// neverAnswered explains why nothing is known about an HCA.
const neverAnswered = "it has not answered yet: it has just come, or it hangs: see the kernel's log"

// Inventory is what is known of a node's HCAs. It is safe for concurrent use.
type Inventory struct {
	root string
	log  logrus.FieldLogger
	list func() (*hca.Inventory, error)
	read func(name string) hca.HCA

	numbers atomic.Pointer[proof]
	latest  atomic.Pointer[snapshot]
	first   chan struct{} // closed once there is a snapshot

	mu     sync.Mutex
	listed *hca.Inventory // the node's HCAs, and their devices
	stamp  time.Time      // of the devices when they were listed
	known  map[string]*known
	failed string // the logged reason why the HCAs could not be listed; "" if they were
}

// snapshot is never changed.
type snapshot struct {
	node  *hca.Inventory
	stamp time.Time // of the devices, as they were listed
	err   error     // there is no node
}

// known is what is known of an HCA.
type known struct {
	place  string    // of the HCA: one that gets its name later is another one
	hca    hca.HCA   // its last good answer; Unread where there was none
	since  time.Time // when it was read, or, where it never was, first asked
	asked  bool      // a read is outstanding
	late   bool      // a reading has gone on without it
	logged bool      // the log has that it does not answer
}

// New makes an inventory of the node at root. It is empty until Run.
func New(root string, log logrus.FieldLogger) *Inventory {
	i := &Inventory{
		root: root, log: log, first: make(chan struct{}), known: map[string]*known{},
		list: func() (*hca.Inventory, error) { return hca.List(root) },
		read: func(name string) hca.HCA { return hca.Read(root, name) },
	}
	i.prove()
	return i
}

// Run reads the node's HCAs until the context is done: at once, when /dev/infiniband changes, and every 10 s.
func (i *Inventory) Run(ctx context.Context) {
	folder := watch.New(filepath.Join(i.root, hca.DeviceFolder), watch.Names)
	defer folder.Close()
	i.follow(ctx, folder.Changed, folder.Renew)
}

func (i *Inventory) follow(ctx context.Context, changed <-chan struct{}, renew func()) {
	again := time.NewTicker(every)
	defer again.Stop()
	for {
		renew()
		i.readAll()
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		case <-changed:
			select { // changes seldom come alone
			case <-ctx.Done():
				return
			case <-time.After(patience):
			}
		}
	}
}

// HCAs returns the node as it was last read; nobody may change it. An HCA that does not answer is as it last was, and
// has Unread if it never answered. The node is Stale where a device has come or gone since. Before the node is read for
// the first time, HCAs waits for that until the context is done.
func (i *Inventory) HCAs(ctx context.Context) (*hca.Inventory, error) {
	s := i.latest.Load()
	if s == nil {
		select {
		case <-i.first:
			s = i.latest.Load()
		case <-ctx.Done():
			return nil, errors.New("the HCAs of this node have not been read yet: try again")
		}
	}
	if s.err == nil && !s.stamp.Equal(hca.DevicesChanged(i.root)) {
		stale := *s.node
		stale.Stale = true
		return &stale, nil
	}
	return s.node, s.err
}

// readAll reads the node. It does not wait longer than its patience for an HCA, and asks that one again once it has
// answered.
func (i *Inventory) readAll() {
	i.prove()
	stamp := hca.DevicesChanged(i.root)
	node, err := i.list()
	if err != nil {
		i.notListed(err)
		return
	}
	asked := i.relist(node, stamp)
	var reads errgroup.Group
	reads.SetLimit(atOnce)
	for name, k := range asked {
		reads.Go(func() error {
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				i.answer(k, i.read(name))
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
			time.AfterFunc(silence, i.logSilent)
		}
	}
	i.publish()
}

// notListed logs why the HCAs cannot be listed. What was known stays.
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

// relist keeps the list of HCAs, and returns those to read, by name: all without an outstanding read. Nothing is known
// of an HCA that has the name of another one, which is gone.
func (i *Inventory) relist(node *hca.Inventory, stamp time.Time) map[string]*known {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.listed, i.stamp, i.failed = node, stamp, ""
	asked := map[string]*known{}
	for _, h := range node.HCAs {
		k := i.known[h.Name]
		if k == nil || k.place != h.Place {
			k = &known{place: h.Place, since: time.Now(),
				hca: hca.HCA{Name: h.Name, NUMANode: -1, Ports: []hca.Port{}, Unread: neverAnswered}}
			i.known[h.Name] = k
		}
		if !k.asked { // guard: one read outstanding
			k.asked = true
			asked[h.Name] = k
		}
	}
	maps.DeleteFunc(i.known, func(name string, k *known) bool {
		_, there := node.Find(name)
		return !there && !k.asked
	})
	return asked
}

// answer keeps what was read of an HCA, unless that was another HCA already. An HCA that answers for a port with an
// error, as while its firmware recovers, counts as one that does not answer: otherwise a container that asks for all
// HCAs would get one less.
func (i *Inventory) answer(k *known, h hca.HCA) {
	i.mu.Lock()
	defer i.mu.Unlock()
	late, logged := k.late, k.logged
	k.asked, k.late, k.logged = false, false, false
	if h.Place != k.place {
		return
	}
	log := i.log.WithField("hca", h.Name)
	if portUnread(h) {
		why, then := strings.Join(h.Problems, "; "), "its last good answer still counts"
		if k.hca.Unread != "" {
			k.hca.Unread, then = "it answers with an error: "+why, "containers that ask for all HCAs are refused"
		}
		if k.logged = true; !logged {
			log.Warnf("the HCA answers with an error: %s; see the kernel's log: %s", then, why)
		}
	} else {
		k.hca, k.since = h, time.Now()
		if logged {
			log.Info("the HCA answers again")
		}
	}
	if late {
		i.publish()
	}
}

// portUnread reports whether the state of some port could not be read.
func portUnread(h hca.HCA) bool {
	return slices.ContainsFunc(h.Ports, func(p hca.Port) bool { return p.State == "" })
}

// logSilent logs each HCA that does not answer, once.
func (i *Inventory) logSilent() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for name, k := range i.known {
		if !k.late || k.logged || time.Since(k.since) < silence {
			continue
		}
		k.logged = true
		log := i.log.WithFields(logrus.Fields{"hca": name, "age": time.Since(k.since).Round(time.Millisecond)})
		if k.hca.Unread == "" {
			log.Warn("the HCA does not answer: its last answer still counts; see the kernel's log")
		} else {
			log.Warn("the HCA does not answer and never did: containers that ask for all HCAs are refused; see the kernel's log")
		}
	}
}

// publish makes HCAs return what is known now.
func (i *Inventory) publish() {
	node := i.listed.Complete(func(name string) hca.HCA { return i.known[name].hca })
	i.put(&snapshot{node: node, stamp: i.stamp})
}

func (i *Inventory) put(s *snapshot) {
	if i.latest.Swap(s) == nil {
		close(i.first)
	}
}
