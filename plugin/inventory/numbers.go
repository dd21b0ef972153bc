// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"sync/atomic"

	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// numbers looks up device numbers of the node at root, after a proof that this works there.
type numbers struct {
	root string
	log  logrus.FieldLogger

	latest atomic.Pointer[proof]
}

// proof is the outcome of the last proof.
type proof struct {
	*hca.Numbers       // nil if it failed
	err          error // why
}

// prove proves that device numbers can be looked up, if that has not been proved yet. One goroutine at a time may call
// it; requests do not wait for it.
func (n *numbers) prove() {
	before := n.latest.Load()
	if before != nil && before.err == nil {
		return
	}
	proved, err := hca.OpenNumbers(n.root)
	switch {
	case err == nil && before != nil:
		n.log.Info("device numbers can be looked up now")
	case err != nil && (before == nil || before.err.Error() != err.Error()):
		n.log.Errorf("not ready because devices of containers cannot be recognised: %v", err)
	}
	n.latest.Store(&proof{proved, err})
}

// Verbs reports whether a character device number is a verbs device of this node. It reads one link and asks no HCA.
// The device's HCA is "" if it is not known yet.
func (i *Inventory) Verbs(n hca.Number) (hca.Device, bool, error) {
	proved := i.numbers.latest.Load()
	if proved.err != nil {
		return hca.Device{}, false, proved.err
	}
	d, ok, err := proved.Verbs(n)
	if s := i.latest.Load(); ok && s != nil {
		d.HCA = s.owner[n]
	}
	return d, ok, err
}

// NumbersUnknown returns nil if device numbers can be looked up on this node, otherwise an error that says why not.
func (i *Inventory) NumbersUnknown() error { return i.numbers.latest.Load().err }
