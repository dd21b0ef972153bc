// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"sync"

	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// numbers looks up device numbers of the node at root, after a proof that this works there.
type numbers struct {
	root string
	log  logrus.FieldLogger

	mu     sync.RWMutex
	proved *hca.Numbers // nil until then
	blind  error        // the reason why there is no proof
}

// state returns the proof, or why there is none.
func (n *numbers) state() (*hca.Numbers, error) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.proved, n.blind
}

// prove proves that device numbers can be looked up, if that has not been proved yet. One goroutine at a time may call it; requests do
// not wait for it.
func (n *numbers) prove() {
	proved, before := n.state()
	if proved != nil {
		return
	}
	proved, err := hca.OpenNumbers(n.root)
	switch {
	case err == nil && before != nil:
		n.log.Info("device numbers can be looked up now")
	case err != nil && (before == nil || before.Error() != err.Error()):
		n.log.Errorf("not ready because devices of containers cannot be recognised: %v", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.proved, n.blind = proved, err
}

// Verbs reports whether a character device number is a verbs device of this node. It reads one link and asks no HCA. The
// device's HCA is "" if it is not known yet.
func (i *Inventory) Verbs(n hca.Number) (hca.Device, bool, error) {
	proved, err := i.numbers.state()
	if proved == nil {
		return hca.Device{}, false, err
	}
	d, ok, err := proved.Verbs(n)
	if s := i.latest.Load(); ok && s != nil {
		d.HCA = s.owner[n]
	}
	return d, ok, err
}

// Blind returns nil if device numbers can be looked up on this node, otherwise an error that says why not.
func (i *Inventory) Blind() error {
	_, err := i.numbers.state()
	return err
}
