// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"path"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// proof is the result of the last attempt to look up device numbers.
type proof struct {
	*hca.Numbers       // nil if the attempt failed
	err          error // why it failed
}

// prove checks that device numbers can be looked up, until one check has succeeded. Only one goroutine at a time may
// call it. Requests do not wait for it.
func (i *Inventory) prove() {
	before := i.numbers.Load()
	if before != nil && before.err == nil {
		return
	}
	proved, err := hca.OpenNumbers(i.root)
	switch {
	case err == nil && before != nil:
		i.log.Info("device numbers can be looked up now")
	case err != nil && (before == nil || before.err.Error() != err.Error()):
		i.log.Errorf("not ready, because the containers' devices cannot be recognized: %v", err)
	}
	i.numbers.Store(&proof{proved, err})
}

// Verbs reports whether a character device number is a verbs device of this node. It reads one link, and no file of an
// HCA. The device's HCA is the one at its place, or "" if it is not known yet.
func (i *Inventory) Verbs(n hca.Number) (hca.Device, bool, error) {
	proved := i.numbers.Load()
	if proved.err != nil {
		return hca.Device{}, false, proved.err
	}
	d, ok, err := proved.Verbs(n)
	if s := i.latest.Load(); ok && s.err == nil {
		d.HCA = s.names[path.Dir(path.Dir(d.Place))]
		if d.HCA == "" {
			named, _ := s.node.Lookup(n)
			d.HCA = named.HCA
		}
	}
	return d, ok, err
}

// NumbersUnknown returns nil if device numbers can be looked up on this node, otherwise an error that says why not.
func (i *Inventory) NumbersUnknown() error { return i.numbers.Load().err }
