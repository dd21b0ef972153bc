// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// HCAReader reads HCAs, all at once, and closes the channel when it has no more. It sends without waiting for the
// receiver.
type HCAReader func(names []string) <-chan hca.HCA

// readHere reads the HCAs below a root in this process.
func readHere(root string) HCAReader {
	return func(names []string) <-chan hca.HCA {
		answers := make(chan hca.HCA, len(names))
		var group sync.WaitGroup
		for _, name := range names {
			group.Go(func() { answers <- hca.Read(root, name) })
		}
		go func() { group.Wait(); close(answers) }()
		return answers
	}
}

// readHCAs reads all HCAs.
func (s *Snapshot) readHCAs() (*hca.Inventory, error) {
	listed, err := hca.List(s.Root)
	if err != nil || len(listed.HCAs) == 0 {
		return listed, err
	}
	return ReadListed(s.Root, listed, s.ReadHCAs, cmp.Or(s.Patience, Patience)), nil
}

// ReadListed reads the HCAs of a list; without a reader in this process. One that does not answer in time is unread, and
// costs the others nothing.
func ReadListed(root string, listed *hca.Inventory, read HCAReader, patience time.Duration) *hca.Inventory {
	var names []string
	for _, h := range listed.HCAs {
		names = append(names, h.Name)
	}
	if read == nil {
		read = readHere(root)
	}
	answers, late := read(names), time.After(patience)
	got := map[string]hca.HCA{}
	for h, ok := next(answers, late); ok; h, ok = next(answers, late) {
		got[h.Name] = h
	}
	return listed.Complete(func(name string) hca.HCA {
		if h, ok := got[name]; ok {
			return h
		}
		return hca.HCA{Name: name, NUMANode: -1, Unread: fmt.Sprintf("it did not answer within %s", patience)}
	})
}

// next returns the next answer, if there is one before it is late.
func next(answers <-chan hca.HCA, late <-chan time.Time) (h hca.HCA, ok bool) {
	select {
	case h, ok = <-answers:
		return h, ok
	default:
	}
	select {
	case h, ok = <-answers:
	case <-late:
	}
	return h, ok
}
