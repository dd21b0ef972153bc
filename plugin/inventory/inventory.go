// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package inventory reads a node's HCAs in the background, so that no request reads a file of an HCA: the driver asks
// the HCA's firmware for the state of a port, and a faulty HCA can take seconds to respond. It knows nothing about
// containers.
package inventory

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/plugin/watch"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

const (
	// interval is the time between two readings if nothing changes in /dev/infiniband.
	interval = 10 * time.Second
	// readTimeout is how long a reading waits for an HCA before it continues without it.
	readTimeout = 200 * time.Millisecond
	// silentAfter is the time after which the log says that an HCA does not respond. A shorter delay can come from the
	// load on the node.
	silentAfter = 2 * time.Second
	// parallelReads is how many HCAs a reading waits for at the same time.
	parallelReads = 4
)

// neverResponded explains why nothing is known about an HCA.
const neverResponded = "it has not responded yet, because it was found only a moment ago, or because it hangs: see " +
	"the kernel log"

// notWanted explains why nothing is known about an HCA. A node may have thousands, so only those that matter are read.
const notWanted = "it is not read, because no selector in the policy matches it"

// Inventory is what is known of a node's HCAs. It is safe for concurrent use.
type Inventory struct {
	root string
	log  logrus.FieldLogger
	list func() (node *hca.Inventory, changed bool, err error)
	read func(hca.HCA, hca.Parts) hca.HCA

	numbers  atomic.Pointer[proof]
	latest   atomic.Pointer[snapshot]
	want     atomic.Pointer[want]
	readings atomic.Int64  // how many readings have begun
	requests chan struct{} // receives if somebody requests a reading

	mu          sync.Mutex
	listed      snapshot // the node's HCAs as they were listed, unread
	known       map[string]*known
	unpublished bool   // something in known differs from the latest snapshot
	failed      string // the logged reason why the HCAs could not be listed; "" if they were
}

// snapshot is never changed.
type snapshot struct {
	node    *hca.Inventory
	stamp   time.Time         // of the devices, as they were listed
	names   map[string]string // of the HCAs, by hca.HCA.Bus; "" if several share one
	want    *want             // what it was read for
	reading int64             // the number of its reading, from 1; 0 if the node was not read yet
	err     error             // if not nil, there is no node

	replaced chan struct{} // closed when there is another
}

// want is what decisions may depend on.
type want struct {
	hcas  func(*hca.HCA) bool
	parts hca.Parts
}

// known is what is known of an HCA that is read.
type known struct {
	listed      hca.HCA   // an HCA with the same name at another place is another HCA
	hca         hca.HCA   // its last good response; Unread if there was none
	parts       hca.Parts // the parts that were asked for
	responded   time.Time // when it responded last; if it never did, when it was first asked
	outstanding bool      // a read has not returned
	late        bool      // a reading continued without it
	logged      bool      // the log says that it does not respond, or responds with an error
}

// New makes an inventory of the node at root. It is empty until Run.
func New(root string, log logrus.FieldLogger) *Inventory {
	reader := hca.NewReader(root)
	i := &Inventory{
		root: root, log: log, requests: make(chan struct{}, 1), known: map[string]*known{},
		list: reader.List, read: reader.Read,
	}
	i.listed.node = &hca.Inventory{}
	i.latest.Store(&snapshot{err: errNotRead, replaced: make(chan struct{})})
	i.want.Store(&want{hcas: func(*hca.HCA) bool { return false }})
	i.prove()
	return i
}

// Want sets which HCAs, as they are listed, decisions may depend on, and on which of their parts. From then on, HCAs
// returns no node that was read for less. Physical functions are always read, for their metrics.
func (i *Inventory) Want(hcas func(*hca.HCA) bool, parts hca.Parts) {
	i.want.Store(&want{hcas, parts})
	i.requestReading()
}

func (i *Inventory) requestReading() {
	select {
	case i.requests <- struct{}{}:
	default: // somebody has requested one already
	}
}

// Run reads the node's HCAs until the context is done: at once, when /dev/infiniband changes, and every 10 s.
func (i *Inventory) Run(ctx context.Context) {
	dir := watch.New(filepath.Join(i.root, hca.DeviceDir), watch.Names)
	defer dir.Close()
	i.follow(ctx, dir.Changed, dir.Renew)
}

func (i *Inventory) follow(ctx context.Context, changed <-chan struct{}, renew func()) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		renew()
		i.readAll()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-i.requests:
		case <-changed:
			select { // one change is usually followed by others
			case <-ctx.Done():
				return
			case <-time.After(readTimeout):
			}
		}
	}
}

// HCAs returns the node as it was last read. Nobody may change it. An HCA that does not respond is as it was in its
// last response. An HCA that never responded, or that is not wanted, is Unread. The node is stale if a device may have
// come or gone since the reading. HCAs waits for the first reading until the context is done.
func (i *Inventory) HCAs(ctx context.Context) (node *hca.Inventory, stale bool, err error) {
	s, err := i.await(ctx, i.suffices)
	if err != nil {
		return nil, false, err
	}
	return s.node, i.mayHaveChangedSince(s), s.err
}

// Latest is HCAs without waiting.
func (i *Inventory) Latest() (node *hca.Inventory, stale bool, err error) {
	s := i.latest.Load()
	if !i.suffices(s) {
		return nil, false, errNotRead
	}
	return s.node, i.mayHaveChangedSince(s), s.err
}

// Known returns the node as it is known, even if it was read for less than what is wanted now. It does not wait. It
// returns nil if the node was never listed. Nobody may change the node.
func (i *Inventory) Known() *hca.Inventory { return i.latest.Load().node }

// ReadAgain returns the node from a reading that begins now. It waits for this reading until the context is done. The
// node is stale if a device has come or gone since the reading began.
func (i *Inventory) ReadAgain(ctx context.Context) (node *hca.Inventory, stale bool, err error) {
	begun := i.readings.Load()
	i.requestReading()
	s, err := i.await(ctx, func(s *snapshot) bool { return s.reading > begun && i.suffices(s) })
	if err != nil {
		return nil, false, err
	}
	return s.node, i.changedSince(s), s.err
}

// suffices reports whether a snapshot was read for what is wanted now.
func (i *Inventory) suffices(s *snapshot) bool { return s.want == i.want.Load() }

// mayHaveChangedSince is changedSince, and true if the devices have no stamp.
func (i *Inventory) mayHaveChangedSince(s *snapshot) bool {
	return s.stamp.IsZero() || i.changedSince(s)
}

// changedSince reports whether a device has come or gone since a snapshot.
func (i *Inventory) changedSince(s *snapshot) bool { return !s.stamp.Equal(hca.DevicesChanged(i.root)) }

var errNotRead = errors.New("the HCAs of this node have not been read yet: try again")

// await waits for a snapshot that is enough.
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
