// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"hash/maphash"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unique"
	"unsafe"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
)

const (
	// recordBytesMost bounds the record. It is enough for 30,000 plain containers, or for 8,000 with two dozen devices each.
	recordBytesMost = 16 << 20
	// startsWithin is how long after its creation a container without processes counts as one that has not been started yet.
	startsWithin = time.Minute
)

// containerID is a container's ID: runtimes write 32 random bytes in hex.
type containerID [32]byte

func (id containerID) String() string { return hex.EncodeToString(id[:]) }

// recorded is a container of the record: what a decision about it depends on, in 80 bytes and the pod's name. It is never changed.
type recorded struct {
	id      containerID
	sandbox uint64 // a hash of the sandbox's ID
	pod     string
	facts   unique.Handle[facts]
	since   uint32 // seconds from the record's beginning to its creation or listing
	listed  bool   // the runtime had it when the plugin registered
}

// facts are what containers have in common: the workers of a job hold the same HCAs and GPUs. They are kept once for all.
type facts struct {
	container string // a policy.Container as JSON, without its pod and its devices
	devices   string // as packed makes it: JSON of two dozen would take longer than the whole decision
	given     spec.Rlimit
}

// withoutResources is what JSON keeps of a container.
type withoutResources struct {
	policy.Container
	Resources *struct{} `json:",omitempty"` // hides the function, which has no JSON
}

// packed writes the character devices, which may be a signal: each as its type, its numbers, and its path behind the path's length. A
// container that may use every device of the host has none.
func packed(c policy.Container) string {
	if c.AllDevices {
		return ""
	}
	to := make([]byte, 0, 32*len(c.Devices))
	for _, d := range c.Devices {
		if d.Type != "c" && d.Type != "u" {
			continue
		}
		to = append(to, d.Type[0])
		to = binary.AppendVarint(to, d.Major)
		to = binary.AppendVarint(to, d.Minor)
		to = binary.AppendUvarint(to, uint64(len(d.Path)))
		to = append(to, d.Path...)
	}
	return string(to)
}

// unpacked is the reverse of packed.
func unpacked(text string) (devices []policy.Device) {
	for from := strings.NewReader(text); from.Len() > 0; {
		kind, _ := from.ReadByte() // packed has made all of it
		major, _ := binary.ReadVarint(from)
		minor, _ := binary.ReadVarint(from)
		length, _ := binary.ReadUvarint(from)
		path := make([]byte, length)
		_, _ = io.ReadFull(from, path)
		devices = append(devices, policy.Device{Path: string(path), Type: string(kind), Major: major, Minor: minor})
	}
	return devices
}

var seed = maphash.MakeSeed()

// newRecorded returns nil for a container whose processes cannot be found, because its ID is another kind of ID.
func newRecorded(c Container, since uint32, listed bool) *recorded {
	e := &recorded{sandbox: maphash.String(seed, c.Sandbox), pod: strings.Clone(c.Pod), since: since, listed: listed}
	if n, err := hex.Decode(e.id[:], []byte(c.ID[:min(len(c.ID), 2*len(e.id))])); err != nil || 2*n != len(c.ID) || n != len(e.id) {
		return nil
	}
	devices := packed(c.Container)
	c.Pod, c.Resources, c.Devices = "", nil, nil
	text, err := json.Marshal(withoutResources{Container: c.Container})
	if err != nil {
		return nil
	}
	e.facts = unique.Make(facts{string(text), devices, c.Memlock})
	return e
}

// container returns what a decision about the container depends on, without its resources.
func (e *recorded) container() policy.Container {
	f, c := e.facts.Value(), withoutResources{}
	_ = json.Unmarshal([]byte(f.container), &c) // newRecorded has made it
	c.Pod, c.Devices = e.pod, unpacked(f.devices)
	return c.Container
}

// sandboxKey returns a word that differs between sandboxes.
func (e *recorded) sandboxKey() string { return strconv.FormatUint(e.sandbox, 36) }

// bytes returns what the container takes at most: its facts may be shared, and count in full.
func (e *recorded) bytes() int {
	f := e.facts.Value()
	const place = 16 // in the record
	return int(unsafe.Sizeof(*e)+unsafe.Sizeof(f)) + place + len(e.pod) + len(f.container) + len(f.devices)
}

// record holds the containers that were listed or created, whatever the policy says of them, since a later policy may say more. The
// runtime does not report when one is gone: the pass forgets it when it has no processes.
type record struct {
	began      time.Time
	mu         sync.Mutex
	containers []*recorded
	bytes      int
	omitted    uint64 // containers that did not fit
}

// age returns the whole seconds from the record's beginning to now.
func (r *record) age() uint32 { return uint32(time.Since(r.began) / time.Second) }

// overdue reports whether a container would have been started by now.
func (r *record) overdue(e *recorded) bool { return r.age() > e.since+uint32(startsWithin/time.Second) }

// list replaces the record by what the runtime lists. The result says that a container did not fit, for the first time.
func (r *record) list(containers []Container) (full bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.containers, r.bytes = nil, 0
	for _, c := range containers {
		full = r.put(newRecorded(c, r.age(), true)) || full
	}
	return full
}

// add records a container that is created. The result is that of list.
func (r *record) add(c Container) (full bool) {
	e := newRecorded(c, r.age(), false)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.put(e)
}

func (r *record) put(e *recorded) (full bool) {
	if e == nil {
		return false
	}
	size := e.bytes()
	if r.bytes+size > recordBytesMost {
		r.omitted++
		return r.omitted == 1
	}
	r.containers = append(r.containers, e)
	r.bytes += size
	return false
}

// all returns the containers.
func (r *record) all() []*recorded {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.containers)
}

// left counts the containers that did not fit.
func (r *record) left() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.omitted
}

// forget removes containers. One that was listed or created anew meanwhile is another one and stays, although its ID may be the same.
func (r *record) forget(gone []*recorded) {
	set := make(map[*recorded]bool, len(gone))
	for _, e := range gone {
		set[e] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.containers = slices.DeleteFunc(r.containers, func(e *recorded) bool {
		if set[e] {
			r.bytes -= e.bytes()
		}
		return set[e]
	})
}
