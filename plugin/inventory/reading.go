// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// readAll reads the node. readAll reads the wanted HCAs first, so that no caller waits for other HCAs. readAll waits
// for each HCA for at most readTimeout. readAll does not read an HCA again before the HCA has responded.
func (i *Inventory) readAll() {
	i.prove()
	select {
	case <-i.requests: // this reading serves the request
	default:
	}
	s := snapshot{reading: i.readings.Add(1), want: i.want.Load(), stamp: hca.DevicesChanged(i.root)}
	node, changed, err := i.list()
	s.node = node
	s.err = err
	if err != nil {
		i.notListed(s)
		return
	}
	wanted, rest := i.relist(s, changed)
	i.readParts(wanted)
	if len(rest) > 0 {
		i.readParts(rest)
	}
}

// readParts reads the parts of HCAs, and publishes the result.
func (i *Inventory) readParts(hcas []*known) {
	var reads errgroup.Group
	reads.SetLimit(parallelReads)
	for _, k := range hcas {
		listed := k.listed
		parts := k.parts
		reads.Go(func() error {
			responded := make(chan struct{})
			go func() {
				defer close(responded)
				i.keepResponse(k, i.read(listed, parts), parts)
			}()
			select {
			case <-responded:
			case <-time.After(readTimeout):
			}
			return nil
		})
	}
	_ = reads.Wait()
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, k := range hcas {
		if k.outstanding && !k.late {
			k.late = true
			time.AfterFunc(silentAfter, i.logSilent)
		}
	}
	i.publish()
}

// notListed logs why the HCAs cannot be listed. notListed keeps the known state of HCAs.
func (i *Inventory) notListed(s snapshot) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.failed != s.err.Error() {
		i.log.Errorf("cannot list the HCAs of this node: %v", s.err)
	}
	i.failed = s.err.Error()
	if last := i.latest.Load(); last.err != nil || last.want != s.want {
		i.replaceSnapshot(&s)
	}
}

// relist stores the list of HCAs, which may have changed. relist returns the HCAs to read: the wanted HCAs, and the
// other physical functions. relist omits HCAs with an outstanding read. If a new HCA has the name of a removed HCA,
// relist discards the state of the removed HCA.
func (i *Inventory) relist(s snapshot, changed bool) (wanted, rest []*known) {
	i.mu.Lock()
	defer i.mu.Unlock()
	s.names = i.listed.names
	if changed || i.listed.want != s.want {
		s.names = namesByBus(s.node.HCAs)
		i.unpublished = true
	}
	read := make(map[string]bool, len(i.known))
	for n := range s.node.HCAs {
		h := &s.node.HCAs[n]
		parts := hca.Parts{Devices: s.names[h.Bus()] == ""}
		list := &rest // these HCAs are read for the names of their devices
		if s.want.hcas(h) {
			parts = s.want.parts
			list = &wanted
			parts.Devices = true
		} else if !isPhysical(h) {
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
			k.responded = time.Now()
			k.hca.Unread = neverResponded
			i.unpublished = true
		}
		if !k.outstanding { // guard: one read outstanding
			k.outstanding = true
			*list = append(*list, k)
		}
	}
	maps.DeleteFunc(i.known, func(name string, k *known) bool { return !read[name] && !k.outstanding })
	i.listed = s
	i.failed = ""
	return wanted, rest
}

// namesByBus returns the name of the HCA on each bus. The name is "" if several HCAs share the bus.
func namesByBus(hcas []hca.HCA) map[string]string {
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

// isPhysical reports whether an HCA is a physical function. The ports of other functions can belong to pods.
func isPhysical(h *hca.HCA) bool {
	return h.Function != hca.FunctionVirtual && h.Function != hca.FunctionScalable
}

// keepResponse stores the response of an HCA. keepResponse discards the response if another HCA has the name now, or if
// other parts are wanted now. If an HCA responds with an error for a port, for example while its firmware recovers,
// keepResponse keeps the last good response. Without the last good response, a container that requests all HCAs would
// get one HCA fewer.
func (i *Inventory) keepResponse(k *known, h hca.HCA, parts hca.Parts) {
	i.mu.Lock()
	defer i.mu.Unlock()
	late := k.late
	logged := k.logged
	k.outstanding = false
	k.late = false
	k.logged = false
	if h.Place != k.listed.Place || parts != k.parts {
		return
	}
	log := i.log.WithField("hca", h.Name)
	if portUnread(h) {
		why := strings.Join(h.Problems, "; ")
		then := "the plugin uses the HCA's last good response"
		if k.hca.Unread != "" {
			i.unpublished = true
			k.hca.Unread = "the HCA responds with an error: " + why
			then = "the plugin refuses containers that request all HCAs"
		}
		k.logged = true
		if !logged {
			log.WithField("error", why).Warnf("the HCA responds with an error, so %s: see the kernel log", then)
		}
	} else {
		i.unpublished = i.unpublished || !reflect.DeepEqual(k.hca, h)
		k.hca = h
		k.responded = time.Now()
		if logged {
			log.Info("the HCA responds again")
		}
	}
	if late {
		i.publish()
	}
}

// portUnread reports whether the state of a port could not be read.
func portUnread(h hca.HCA) bool {
	return slices.ContainsFunc(h.Ports, func(p hca.Port) bool { return p.State == "" })
}

// logSilent logs once for each HCA that does not respond.
func (i *Inventory) logSilent() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for name, k := range i.known {
		if !k.late || k.logged || time.Since(k.responded) < silentAfter {
			continue
		}
		k.logged = true
		log := i.log.WithFields(logrus.Fields{"hca": name, "age": time.Since(k.responded).Round(time.Millisecond)})
		if k.hca.Unread == "" {
			log.Warn("the HCA does not respond, so the plugin uses the last response: see the kernel log")
		} else {
			log.Warn("the HCA has never responded, so the plugin refuses containers that request all HCAs: see the kernel log")
		}
	}
}

// publish stores a snapshot of the current state, which HCAs then returns.
func (i *Inventory) publish() {
	s := i.listed
	node := *i.listed.node
	last := i.latest.Load()
	if i.unpublished || last.err != nil {
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
	i.unpublished = false
	i.replaceSnapshot(&s)
}

// replaceSnapshot replaces the latest snapshot, and wakes the goroutines that wait for a new snapshot.
func (i *Inventory) replaceSnapshot(s *snapshot) {
	s.replaced = make(chan struct{})
	close(i.latest.Swap(s).replaced)
}
