// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"testing"
	"testing/synctest"
	"time"
)

// What a container is granted is confirmed, once, also where the runtime takes minutes to store it.
func TestSlowCreationIsConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwed()
		o.put("slow", promise{Pod: "train-0"})
		time.Sleep(5 * time.Minute)
		if made, ok := o.take("slow"); !ok || made.Pod != "train-0" {
			t.Errorf("it is lost: %v, %t", made, ok)
		}
		if _, ok := o.take("slow"); ok {
			t.Error("it is confirmed twice")
		}
	})
}
