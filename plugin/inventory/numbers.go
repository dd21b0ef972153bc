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

// prove checks that device numbers can be looked up. After a successful check, prove does nothing. Only one goroutine
// at a time may call prove. Requests do not wait for prove.
func (i *Inventory) prove() {
	before := i.numbers.Load()
	if before != nil && before.err == nil {
		return
	}
	proved, err := hca.OpenNumbers(i.root)
	switch {
	case err == nil && before != nil:
		i.log.Info("device numbers can now be looked up")
	case err != nil && (before == nil || before.err.Error() != err.Error()):
		i.log.Errorf("the plugin is not ready, because it cannot recognize the containers' devices: %v", err)
	}
	i.numbers.Store(&proof{proved, err})
}

// Verbs reports whether a character device number belongs to a verbs device of this node. Verbs reads one link, but no
// HCA's files. The field HCA of the result is the HCA at the device's place, or "" if that HCA is not known yet.
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

// NumbersUnknown returns nil if device numbers can be looked up on this node. If the lookup fails, the error explains
// why.
func (i *Inventory) NumbersUnknown() error { return i.numbers.Load().err }
