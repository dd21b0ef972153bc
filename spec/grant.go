// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package spec knows what an RDMA container gets, the Grant, and how an OCI runtime spec has to change for it.
//
// It works on the JSON text of a spec and not on Go types, so that fields which no type here knows, and numbers that do
// not fit into a float64, come out as they went in. It knows nothing of NRI, of containerd and of who may have what.
package spec

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// Grant is the one unit of change: all that makes a container an RDMA container. The zero Grant changes nothing.
// It describes what the container has in the end: applying it leaves alone what is there already.
type Grant struct {
	// Memlock is the RLIMIT_MEMLOCK that the container's processes have at least, in bytes; 0 leaves it alone.
	Memlock Limit `json:"memlock,omitempty"`
	// IPCLock is whether CAP_IPC_LOCK is added.
	IPCLock IPCLock `json:"ipcLock,omitempty"`
	// Devices are the character devices that the container holds, with read and write access in its device cgroup.
	Devices []hca.Device `json:"devices,omitempty"`
}

// IPCLock is whether a Grant adds CAP_IPC_LOCK.
type IPCLock string

// The values of IPCLock.
const (
	// IPCLockNo leaves the capabilities alone.
	IPCLockNo IPCLock = ""
	// IPCLockIfRequested adds it to the sets that lack it in a container whose bounding set has it: its pod asks for it.
	IPCLockIfRequested IPCLock = "if-requested"
	// IPCLockUnlessDropped adds it, except where the spec shows that its author dropped all capabilities; see DroppedAll.
	IPCLockUnlessDropped IPCLock = "unless-dropped"
	// IPCLockYes adds it in any case.
	IPCLockYes IPCLock = "true"
)

// MarshalJSON writes memlock in words and in bytes; unlimited is the largest number, as for the kernel.
func (g Grant) MarshalJSON() ([]byte, error) {
	type fields Grant
	return json.Marshal(struct {
		Memlock      Limit  `json:"memlock,omitempty"`
		MemlockBytes uint64 `json:"memlockBytes,omitempty"`
		fields
	}{g.Memlock, uint64(g.Memlock), fields(g)})
}

// String returns the grant in the words of logs and of explain: "memlock=unlimited ipc_lock=unless-dropped
// devices=uverbs0,rdma_cm".
func (g Grant) String() string {
	var words []string
	if g.Memlock != 0 {
		words = append(words, "memlock="+g.Memlock.String())
	}
	if g.IPCLock != IPCLockNo {
		words = append(words, "ipc_lock="+string(g.IPCLock))
	}
	if len(g.Devices) > 0 {
		words = append(words, "devices="+g.DeviceNames())
	}
	if len(words) == 0 {
		return "nothing"
	}
	return strings.Join(words, " ")
}

// DeviceNames returns the base names of the grant's devices, joined by commas: "uverbs0,rdma_cm".
func (g Grant) DeviceNames() string {
	names := make([]string, 0, len(g.Devices))
	for _, d := range g.Devices {
		names = append(names, d.Path[strings.LastIndexByte(d.Path, '/')+1:])
	}
	return strings.Join(names, ",")
}

// Apply changes the JSON text of an OCI runtime spec as the grant describes, with CAP_IPC_LOCK in the capability sets
// that are named. The text outside the changed arrays stays byte for byte; a spec that already has what the grant gives
// comes back unchanged, so applying twice equals applying once. Errors name the place in the spec: not JSON, something
// else where an object belongs, a key given twice, another device at a granted one's path.
func (g Grant) Apply(text []byte, sets CapabilitySets) ([]byte, error) {
	root, err := parseObject(wholeSpec, text)
	if err != nil {
		return nil, err
	}
	if g.Memlock != 0 || g.IPCLock != IPCLockNo {
		err = root.edit("process", func(process *object) error { return g.edit(process, sets) })
	}
	if err == nil && len(g.Devices) > 0 {
		err = root.edit("linux", func(linux *object) error { return addDevices(linux, g.Devices) })
	}
	if err != nil {
		return nil, err
	}
	return root.text, nil
}

// Confirmed is a spec that was read and edited at once.
type Confirmed struct {
	Text         []byte // the edited spec
	Memlock      Rlimit // before
	MemlockKnown bool   // the spec set it before; otherwise Memlock is zero
	IPCLock      bool   // afterwards, CAP_IPC_LOCK is in all of the sets
}

// Confirm is Apply without devices, and reads what the spec gives. A container's creation waits for it, so it parses
// the spec once. Errors are those of Apply.
func (g Grant) Confirm(text []byte, sets CapabilitySets) (c Confirmed, err error) {
	root, err := parseObject(wholeSpec, text)
	if err != nil {
		return Confirmed{}, err
	}
	err = root.edit("process", func(process *object) (err error) {
		if c.Memlock, c.MemlockKnown, err = memlock(process); err != nil {
			return err
		}
		if err := g.edit(process, sets); err != nil {
			return err
		}
		c.IPCLock, err = hasIPCLock(process, sets)
		return err
	})
	c.Text = root.text
	return c, err
}

func (g Grant) edit(process *object, sets CapabilitySets) error {
	if g.Memlock != 0 {
		if err := raiseMemlock(process, g.Memlock); err != nil {
			return err
		}
	}
	if g.IPCLock != IPCLockNo {
		return addIPCLock(process, g.IPCLock, sets)
	}
	return nil
}

// wholeSpec is how errors name the outermost object.
const wholeSpec = "the spec"

// typeError is the error for a place in a spec that does not hold what it should.
func typeError(place, want string) error {
	return fmt.Errorf("%s is not %s: not an OCI runtime spec that can be changed", place, want)
}
