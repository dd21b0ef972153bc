// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"slices"

	"github.com/rdma-spec/rdma-spec/spec"
)

// Enough is what an RDMA program needs at the least: a container that can register no more is taken for one that
// cannot register its memory.
const Enough = spec.Limit(64 << 20)

// Handler returns the handler that pods have whose RuntimeClass names it, or that have none.
func (r Runtime) Handler(name string) Handler {
	name = cmp.Or(name, r.DefaultHandler)
	if i := slices.IndexFunc(r.Handlers, func(h Handler) bool { return h.Name == name }); i >= 0 {
		return r.Handlers[i]
	}
	return Handler{Name: name}
}

// Gives returns the memlock that a new container of a handler gets without the plugin: that of the base spec, else of
// the runtime's configuration, else what the daemon itself has. It is nil where that is unknown.
func (r Runtime) Gives(handler string) *spec.Limit {
	if !r.Known {
		return nil
	}
	return cmp.Or(r.Handler(handler).Memlock, r.DefaultMemlock, r.Memlock)
}

// Giving returns a handler of whose base spec a container gets more than is Enough: one that starts the same program as
// another handler where there is one, since the program may add GPUs.
func (r Runtime) Giving(like Handler) (h Handler, found bool) {
	for _, other := range r.Handlers {
		if !other.Sandboxed && other.Memlock != nil && *other.Memlock > Enough && (!found || other.Program == like.Program) {
			h = other
			found = true
		}
	}
	return h, found
}
