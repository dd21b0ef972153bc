// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package inventory reads a node's HCAs in the background, so that no request reads an HCA's files. To read the state
// of a port, the driver asks the HCA's firmware, and a faulty HCA can take seconds to respond. The package does not
// depend on containers.
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
	// interval is the time between two readings if /dev/infiniband does not change.
	interval = 10 * time.Second
	// readTimeout is how long a reading waits for an HCA before the reading continues without that HCA.
	readTimeout = 200 * time.Millisecond
	// silentAfter is the time after which the plugin logs that an HCA does not respond. A shorter delay can be due to load
	// on the node.
	silentAfter = 2 * time.Second
	// parallelReads is the number of HCAs that a reading waits for at the same time.
	parallelReads = 4
)

// neverResponded explains why the state of an HCA that has not responded is unknown.
const neverResponded = "the HCA has not responded yet: it was found only a moment ago, or it is hung " +
	"(to find out which, read the kernel log)"

// notWanted explains why the state of an HCA that the policy does not need is unknown. A node can have thousands of
// HCAs, so the plugin reads only the HCAs that it needs.
const notWanted = "the plugin does not read this HCA, because no selector in the policy matches it"

// Inventory contains the known state of a node's HCAs. An Inventory is safe for concurrent use.
type Inventory struct {
	root string
	log  logrus.FieldLogger
	list func() (node *hca.Inventory, changed bool, err error)
	read func(hca.HCA, hca.Parts) hca.HCA

	numbers  atomic.Pointer[proof]
	latest   atomic.Pointer[snapshot]
	want     atomic.Pointer[want]
	readings atomic.Int64  // number of readings that have begun
	requests chan struct{} // receives a value if a caller requests a reading

	mu          sync.Mutex
	listed      snapshot // the node's HCAs as listed, before a read
	known       map[string]*known
	unpublished bool   // known differs from the latest snapshot
	failed      string // the logged error from the last listing of the HCAs; "" if the listing succeeded
}

// snapshot is the result of a reading. A published snapshot never changes.
type snapshot struct {
	node    *hca.Inventory
	stamp   time.Time         // stamp of the devices at the listing
	names   map[string]string // names of the HCAs, by hca.HCA.Bus; "" if several HCAs share a bus
	want    *want             // the selection that the reading was for
	reading int64             // number of the reading, from 1; 0 if the node has not been read yet
	err     error             // if not nil, the snapshot has no node

	replaced chan struct{} // closed when another snapshot replaces this snapshot
}

// want selects the HCAs, and the parts of HCAs, that decisions may depend on.
type want struct {
	hcas  func(*hca.HCA) bool
	parts hca.Parts
}

// known is the known state of an HCA that the plugin reads.
type known struct {
	listed      hca.HCA   // an HCA with the same name at another place is a different HCA
	hca         hca.HCA   // the last good response; Unread without a good response
	parts       hca.Parts // the requested parts
	responded   time.Time // time of the last response; without a response, time of the first read
	outstanding bool      // a read has not returned
	late        bool      // a reading continued without the HCA
	logged      bool      // the plugin logged that the HCA does not respond, or responds with an error
}

// New returns an inventory of the node at root. The inventory is empty until Run reads the node.
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

// Want selects the HCAs that decisions may depend on, by their listed properties, and the parts of these HCAs to read.
// After Want returns, HCAs returns only a node that was read for this selection. The inventory always reads physical
// functions, for their metrics.
func (i *Inventory) Want(hcas func(*hca.HCA) bool, parts hca.Parts) {
	i.want.Store(&want{hcas, parts})
	i.requestReading()
}

func (i *Inventory) requestReading() {
	select {
	case i.requests <- struct{}{}:
	default: // a reading has already been requested
	}
}

// Run reads the node's HCAs immediately, when /dev/infiniband changes, and every 10 s, until the context is done.
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

// HCAs returns the node from the last reading. Callers must not change the node. If an HCA does not respond, the node
// contains the last response of the HCA. An HCA that never responded, or that is not wanted, is Unread. The node is
// stale if a device might have appeared or disappeared since the reading. HCAs waits for the first reading until the
// context is done.
func (i *Inventory) HCAs(ctx context.Context) (node *hca.Inventory, stale bool, err error) {
	s, err := i.await(ctx, i.suffices)
	if err != nil {
		return nil, false, err
	}
	return s.node, i.mayHaveChangedSince(s), s.err
}

// Latest is like HCAs, but does not wait.
func (i *Inventory) Latest() (node *hca.Inventory, stale bool, err error) {
	s := i.latest.Load()
	if !i.suffices(s) {
		return nil, false, errNotRead
	}
	return s.node, i.mayHaveChangedSince(s), s.err
}

// Known returns the last known node, even if the node was read for an earlier selection. Known does not wait. If the
// node was never listed, Known returns nil. Callers must not change the node.
func (i *Inventory) Known() *hca.Inventory { return i.latest.Load().node }

// ReadAgain requests a new reading, and waits for this reading until the context is done. ReadAgain returns the node
// from the new reading. The node is stale if a device has appeared or disappeared since the reading began.
func (i *Inventory) ReadAgain(ctx context.Context) (node *hca.Inventory, stale bool, err error) {
	begun := i.readings.Load()
	i.requestReading()
	s, err := i.await(ctx, func(s *snapshot) bool { return s.reading > begun && i.suffices(s) })
	if err != nil {
		return nil, false, err
	}
	return s.node, i.changedSince(s), s.err
}

// suffices reports whether a snapshot was read for the current selection.
func (i *Inventory) suffices(s *snapshot) bool { return s.want == i.want.Load() }

// mayHaveChangedSince is like changedSince, but also returns true if the devices have no stamp.
func (i *Inventory) mayHaveChangedSince(s *snapshot) bool {
	return s.stamp.IsZero() || i.changedSince(s)
}

// changedSince reports whether a device has appeared or disappeared since a snapshot.
func (i *Inventory) changedSince(s *snapshot) bool { return !s.stamp.Equal(hca.DevicesChanged(i.root)) }

var errNotRead = errors.New("the HCAs of this node have not been read yet: try again")

// await waits for a snapshot for which enough returns true.
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
