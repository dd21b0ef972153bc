// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"slices"

	"github.com/rdma-spec/rdma-spec/spec"
)

// Enough is the minimum amount of memory for an RDMA program. A container that can register at most this amount counts
// as unable to register its memory.
const Enough = spec.Limit(64 << 20)

// Handler returns the handler with this name. If name is empty, it returns the handler of pods without a RuntimeClass.
func (r Runtime) Handler(name string) Handler {
	name = cmp.Or(name, r.DefaultHandler)
	if i := slices.IndexFunc(r.Handlers, func(h Handler) bool { return h.Name == name }); i >= 0 {
		return r.Handlers[i]
	}
	return Handler{Name: name}
}

// Gives returns the memlock of a new container with this handler if there is no plugin. The memlock comes from the base
// spec, or else from the runtime's configuration, or else from the daemon's own limit. The result is nil if the memlock
// is unknown.
func (r Runtime) Gives(handler string) *spec.Limit {
	if !r.Known {
		return nil
	}
	return cmp.Or(r.Handler(handler).Memlock, r.DefaultMemlock, r.Memlock)
}

// Giving returns a handler whose base spec sets memlock to more than Enough. It prefers a handler with the same program
// as another handler, because the program might add GPUs.
func (r Runtime) Giving(like Handler) (h Handler, found bool) {
	for _, other := range r.Handlers {
		if !other.Sandboxed && other.Memlock != nil && *other.Memlock > Enough && (!found || other.Program == like.Program) {
			h = other
			found = true
		}
	}
	return h, found
}
