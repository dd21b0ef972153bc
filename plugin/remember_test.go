// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdma-spec/rdma-spec/spec"
)

// A runtime that takes minutes to store a container has its spec edited all the same.
func TestSlowCreationIsEdited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdits()
		e.put("slow", spec.Grant{IPCLock: spec.IPCLockYes})
		time.Sleep(5 * time.Minute)
		if grant, ok := e.take("slow"); !ok || grant.IPCLock != spec.IPCLockYes {
			t.Errorf("the edit is lost: %v, %t", grant, ok)
		}
		if _, ok := e.take("slow"); ok {
			t.Error("the edit is made twice")
		}
	})
}
