// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package inventory keeps what is known of a node's HCAs, so that no request reads a file of one: an HCA asks its
// firmware for the state of a port, and a faulty one can take seconds to respond. It knows nothing of containers.
package inventory

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"reflect"
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
const neverAnswered = "it has not responded yet: it is new, or it hangs: see the kernel log"

// notWanted explains why nothing is known about an HCA of a node that may have thousands.
const notWanted = "it is not read, because no selector in the policy matches it"

// Inventory is what is known of a node's HCAs. It is safe for concurrent use.
type Inventory struct {
	root string
	log  logrus.FieldLogger
	list func() (*hca.Inventory, error)
	read func(hca.HCA, hca.Parts) hca.HCA

	numbers  atomic.Pointer[proof]
	latest   atomic.Pointer[snapshot]
	want     atomic.Pointer[want]
	readings atomic.Int64  // that have begun
	again    chan struct{} // receives when the node is to be read at once

	mu     sync.Mutex
	listed snapshot // the node's HCAs as they were listed, unread
	known  map[string]*known
	stale  bool   // what is known is not what was published
	failed string // the logged reason why the HCAs could not be listed; "" if they were
}

// snapshot is never changed.
type snapshot struct {
	node    *hca.Inventory
	stamp   time.Time         // of the devices, as they were listed
	names   map[string]string // of the HCAs, by hca.HCA.Bus; "" where several share one
	want    *want             // that it is read for
	reading int64             // that it is of; 0 where there was none
	err     error             // there is no node

	replaced chan struct{} // closed when there is another
}

// want is what decisions may depend on.
type want struct {
	hcas  func(*hca.HCA) bool
	parts hca.Parts
}

// known is what is known of an HCA that is read.
type known struct {
	listed hca.HCA   // one at another place that gets its name is another one
	hca    hca.HCA   // its last good answer; Unread where there was none
	parts  hca.Parts // that were asked for
	since  time.Time // when it was read, or, where it never was, first asked
	asked  bool      // a read is outstanding
	late   bool      // a reading has gone on without it
	logged bool      // the log has that it does not answer
}

// New makes an inventory of the node at root. It is empty until Run.
func New(root string, log logrus.FieldLogger) *Inventory {
	reader := hca.NewReader(root)
	i := &Inventory{
		root: root, log: log, again: make(chan struct{}, 1), known: map[string]*known{},
		list: reader.List, read: reader.Read,
	}
	i.listed.node = &hca.Inventory{}
	i.latest.Store(&snapshot{err: errNotRead, replaced: make(chan struct{})})
	i.want.Store(&want{hcas: func(*hca.HCA) bool { return false }})
	i.prove()
	return i
}

// Want sets which HCAs decisions may depend on, by what the list of HCAs has of them, and on which parts of them. From
// then on, HCAs returns no node that was read for less. Physical functions are read in any case, for their metrics.
func (i *Inventory) Want(hcas func(*hca.HCA) bool, parts hca.Parts) {
	i.want.Store(&want{hcas, parts})
	i.readAgain()
}

func (i *Inventory) readAgain() {
	select {
	case i.again <- struct{}{}:
	default: // it will be read
	}
}

// Run reads the node's HCAs until the context is done: at once, when /dev/infiniband changes, and every 10 s.
func (i *Inventory) Run(ctx context.Context) {
	dir := watch.New(filepath.Join(i.root, hca.DeviceDir), watch.Names)
	defer dir.Close()
	i.follow(ctx, dir.Changed, dir.Renew)
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
		case <-i.again:
		case <-changed:
			select { // changes seldom come alone
			case <-ctx.Done():
				return
			case <-time.After(patience):
			}
		}
	}
}

// HCAs returns the node as it was last read; nobody may change it. An HCA that does not answer is as it last was. It
// has Unread if it never answered, or is not wanted. The node is Stale where a device has come or gone since. Before
// the node is read for the first time, HCAs waits for that until the context is done.
func (i *Inventory) HCAs(ctx context.Context) (*hca.Inventory, error) {
	s, err := i.await(ctx, i.suffices)
	if err != nil {
		return nil, err
	}
	return i.since(s)
}

// Latest is HCAs without waiting.
func (i *Inventory) Latest() (*hca.Inventory, error) {
	s := i.latest.Load()
	if !i.suffices(s) {
		return nil, errNotRead
	}
	return i.since(s)
}

// suffices reports whether a snapshot has what decisions depend on.
func (i *Inventory) suffices(s *snapshot) bool { return s.want == i.want.Load() }

// since returns the node of a snapshot, which is Stale where a device has come or gone since.
func (i *Inventory) since(s *snapshot) (*hca.Inventory, error) {
	return s.as(s.stamp.IsZero() || !s.stamp.Equal(hca.DevicesChanged(i.root)))
}

// Known returns the node as it is known, wanted or not, without waiting; nil if it was never listed. Nobody may change
// it.
func (i *Inventory) Known() *hca.Inventory { return i.latest.Load().node }

// Again returns the node as a reading finds it that begins now. It waits for that until the context is done.
func (i *Inventory) Again(ctx context.Context) (*hca.Inventory, error) {
	begun := i.readings.Load()
	i.readAgain()
	s, err := i.await(ctx, func(s *snapshot) bool { return s.reading > begun && i.suffices(s) })
	if err != nil {
		return nil, err
	}
	return s.as(!s.stamp.Equal(hca.DevicesChanged(i.root)))
}

var errNotRead = errors.New("the HCAs of this node have not been read yet: try again")

// await waits for a snapshot.
func (i *Inventory) await(ctx context.Context, enough func(*snapshot) bool) (*snapshot, error) {
	for {
		s := i.latest.Load()
		if enough(s) {
			return s, nil
		}
		select {
		case <-s.replaced:
		case <-ctx.Done():
			return nil, errNotRead
		}
	}
}

// as returns the node of a snapshot, which may be stale.
func (s *snapshot) as(stale bool) (*hca.Inventory, error) {
	if s.err != nil || !stale {
		return s.node, s.err
	}
	node := *s.node
	node.Stale = true
	return &node, nil
}

// readAll reads the node: first what is wanted, so that nobody waits for the rest. It does not wait longer than its
// patience for an HCA, and asks that one again once it has answered.
func (i *Inventory) readAll() {
	i.prove()
	select {
	case <-i.again: // what asked for it is satisfied by this reading
	default:
	}
	s := snapshot{reading: i.readings.Add(1), want: i.want.Load(), stamp: hca.DevicesChanged(i.root)}
	s.node, s.err = i.list()
	if s.err != nil {
		i.notListed(s)
		return
	}
	wanted, rest := i.relist(s)
	i.ask(wanted)
	if len(rest) > 0 {
		i.ask(rest)
	}
}

// ask asks HCAs for their parts, and makes HCAs return what is known then.
func (i *Inventory) ask(hcas []*known) {
	var reads errgroup.Group
	reads.SetLimit(atOnce)
	for _, k := range hcas {
		listed := k.listed
		parts := k.parts
		reads.Go(func() error {
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				i.answer(k, i.read(listed, parts), parts)
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
	for _, k := range hcas {
		if k.asked && !k.late {
			k.late = true
			time.AfterFunc(silence, i.logSilent)
		}
	}
	i.publish()
}

// notListed logs why the HCAs cannot be listed. What was known stays.
func (i *Inventory) notListed(s snapshot) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.failed != s.err.Error() {
		i.log.Errorf("cannot list the HCAs of this node: %v", s.err)
	}
	i.failed = s.err.Error()
	if last := i.latest.Load(); last.err != nil || last.want != s.want {
		i.put(&s)
	}
}

// relist keeps the list of HCAs, and returns those to read: the wanted ones and the other physical functions, all
// without an outstanding read. Nothing is known of an HCA that has the name of another one, which is gone.
func (i *Inventory) relist(s snapshot) (wanted, rest []*known) {
	i.mu.Lock()
	defer i.mu.Unlock()
	s.names = i.listed.names
	if i.listed.want != s.want || !same(i.listed.node.HCAs, s.node.HCAs) {
		s.names = names(s.node.HCAs)
		i.stale = true
	}
	read := make(map[string]bool, len(i.known))
	for n := range s.node.HCAs {
		h := &s.node.HCAs[n]
		parts := hca.Parts{Devices: s.names[h.Bus()] == ""}
		to := &rest // which tell the names of the devices
		if s.want.hcas(h) {
			parts = s.want.parts
			to = &wanted
			parts.Devices = true
		} else if !physical(h) {
			continue
		}
		read[h.Name] = true
		k := i.known[h.Name]
		if k == nil || k.listed.Place != h.Place {
			k = &known{}
			i.known[h.Name] = k
		}
		if k.hca.Name == "" || k.parts != parts {
			k.listed = *h
			k.hca = *h
			k.parts = parts
			k.since = time.Now()
			k.hca.Unread = neverAnswered
			i.stale = true
		}
		if !k.asked { // guard: one read outstanding
			k.asked = true
			*to = append(*to, k)
		}
	}
	maps.DeleteFunc(i.known, func(name string, k *known) bool { return !read[name] && !k.asked })
	i.listed = s
	i.failed = ""
	return wanted, rest
}

// same reports whether two lists of HCAs are one.
func same(a, b []hca.HCA) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }

// names returns the names of HCAs by their bus, "" where several share it.
func names(hcas []hca.HCA) map[string]string {
	all := make(map[string]string, len(hcas))
	for n := range hcas {
		name := hcas[n].Name
		if _, shared := all[hcas[n].Bus()]; shared {
			name = ""
		}
		all[hcas[n].Bus()] = name
	}
	return all
}

// physical reports whether an HCA's ports are its own, and not those of a pod.
func physical(h *hca.HCA) bool {
	return h.Function != hca.FunctionVirtual && h.Function != hca.FunctionScalable
}

// answer keeps what was read of an HCA, unless that was another HCA already, or less than is wanted now. An HCA
// that answers for a port with an error, as while its firmware recovers, counts as one that does not answer:
// otherwise a container that asks for all HCAs would get one less.
func (i *Inventory) answer(k *known, h hca.HCA, parts hca.Parts) {
	i.mu.Lock()
	defer i.mu.Unlock()
	late := k.late
	logged := k.logged
	k.asked = false
	k.late = false
	k.logged = false
	if h.Place != k.listed.Place || parts != k.parts {
		return
	}
	log := i.log.WithField("hca", h.Name)
	if portUnread(h) {
		why := strings.Join(h.Problems, "; ")
		then := "its last good response is used"
		if k.hca.Unread != "" {
			i.stale = true
			k.hca.Unread = "it responds with an error: " + why
			then = "containers that request all HCAs are refused"
		}
		k.logged = true
		if !logged {
			log.Warnf("the HCA responds with an error: %s; see the kernel log: %s", then, why)
		}
	} else {
		i.stale = i.stale || !reflect.DeepEqual(k.hca, h)
		k.hca = h
		k.since = time.Now()
		if logged {
			log.Info("the HCA responds again")
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
			log.Warn("the HCA does not respond: its last response is used; see the kernel log")
		} else {
			log.Warn("the HCA has never responded: containers that request all HCAs are refused; see the kernel log")
		}
	}
}

// publish makes HCAs return what is known now.
func (i *Inventory) publish() {
	s := i.listed
	node := *i.listed.node
	last := i.latest.Load()
	if i.stale || last.err != nil {
		node.HCAs = slices.Clone(node.HCAs)
		for n := range node.HCAs {
			h := &node.HCAs[n]
			if k := i.known[h.Name]; k != nil && k.listed.Place == h.Place {
				*h = k.hca
			} else {
				h.Unread = notWanted
			}
		}
	} else {
		node.HCAs = last.node.HCAs
	}
	s.node = &node
	i.stale = false
	i.put(&s)
}

func (i *Inventory) put(s *snapshot) {
	s.replaced = make(chan struct{})
	close(i.latest.Swap(s).replaced)
}
