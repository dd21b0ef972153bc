// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package spec defines the Grant, which contains everything that the policy gives an RDMA container, and applies a
// Grant to an OCI runtime spec.
//
// The package edits the JSON text of a spec instead of decoding the spec into Go types. As a result, unknown fields,
// and numbers that do not fit into a float64, stay unchanged. The package is independent of NRI and containerd, and
// does not decide which Grant a container gets.
package spec

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// Grant is everything that the policy gives an RDMA container. A Grant describes the result, not the changes: applying
// a Grant does not lower limits, and does not remove capabilities or devices that the container already has. The zero
// Grant changes nothing.
type Grant struct {
	// Memlock is the minimum RLIMIT_MEMLOCK of the container's processes, in bytes. The value 0 does not change the
	// limit.
	Memlock Limit `json:"memlock,omitempty"`
	// IPCLock determines whether the grant adds CAP_IPC_LOCK.
	IPCLock IPCLock `json:"ipcLock,omitempty"`
	// Devices are the character devices that the container gets, with read and write access in the container's device
	// cgroup.
	Devices []hca.Device `json:"devices,omitempty"`
}

// IPCLock determines whether a Grant adds CAP_IPC_LOCK.
type IPCLock string

// The values of IPCLock.
const (
	// IPCLockNo does not change the capabilities.
	IPCLockNo IPCLock = ""
	// IPCLockIfRequested adds CAP_IPC_LOCK to all sets if the bounding set contains CAP_IPC_LOCK, which means that the
	// pod requests the capability.
	IPCLockIfRequested IPCLock = "if-requested"
	// IPCLockUnlessDropped adds CAP_IPC_LOCK, unless the spec shows that the container's author dropped all
	// capabilities; see DroppedAll.
	IPCLockUnlessDropped IPCLock = "unless-dropped"
	// IPCLockYes always adds CAP_IPC_LOCK.
	IPCLockYes IPCLock = "true"
)

// MarshalJSON writes memlock both as a text and in bytes. In bytes, Unlimited is the largest uint64, as in the kernel.
func (g Grant) MarshalJSON() ([]byte, error) {
	type fields Grant
	return json.Marshal(struct {
		Memlock      Limit  `json:"memlock,omitempty"`
		MemlockBytes uint64 `json:"memlockBytes,omitempty"`
		fields
	}{g.Memlock, uint64(g.Memlock), fields(g)})
}

// String returns the grant in the format of logs and of the command explain, such as "memlock=unlimited
// ipc_lock=unless-dropped devices=uverbs0,rdma_cm".
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

// DeviceNames returns the base names of the grant's devices, separated by commas, such as "uverbs0,rdma_cm".
func (g Grant) DeviceNames() string {
	names := make([]string, 0, len(g.Devices))
	for _, d := range g.Devices {
		names = append(names, d.Path[strings.LastIndexByte(d.Path, '/')+1:])
	}
	return strings.Join(names, ",")
}

// Apply returns the JSON text of an OCI runtime spec with the grant added. It adds CAP_IPC_LOCK to the given capability
// sets. The text outside the changed arrays stays the same, byte for byte. If a spec already contains the whole grant,
// Apply returns the spec unchanged. An error names the affected place in the spec. Apply returns an error if the text
// is not JSON, a value has the wrong type, an object contains a key twice, or another device is at a granted device's
// path.
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

// Confirmed is the result of Confirm.
type Confirmed struct {
	Text         []byte // the edited spec
	Memlock      Rlimit // the memlock before the edit
	MemlockKnown bool   // whether the spec set a memlock before the edit; if false, Memlock is zero
	IPCLock      bool   // whether all of the sets contain CAP_IPC_LOCK after the edit
}

// Confirm applies the grant without its devices, and also reads the memlock from the spec. It parses the spec only
// once, because a container's creation waits for the result. Confirm returns the same errors as Apply.
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

// wholeSpec is the name of the outermost object in error messages.
const wholeSpec = "the spec"

// typeError returns the error for a place in a spec whose value does not have the wanted type.
func typeError(place, want string) error {
	return fmt.Errorf("not a valid OCI runtime spec: %s is not %s", place, want)
}
