// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package storedspec

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rdma-spec/rdma-spec/plugin/storedspec/storedspectest"
)

// An edit that took long succeeds only if the container's task did not exist after it. One that did not costs a read
// and a write.
func TestTaskThatWasCreatedBeforeTheEdit(t *testing.T) {
	for name, test := range map[string]struct {
		takes   time.Duration
		started bool
		looks   int
		want    error
	}{
		"as usual":              {0, false, 0, nil},
		"slow":                  {usual, false, 1, nil},
		"slow, and it runs":     {usual, true, 1, ErrStarted},
		"slow, nothing changed": {usual, true, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, server, _ := inMemory(t, Options{})
				server.Put("k8s.io", "train", storedspectest.TrainingSpec())
				unchanged := test.started && test.looks == 0
				if unchanged {
					if _, err := client.Confirm(t.Context(), "train", ipcLock); err != nil {
						t.Fatal(err)
					}
				}
				server.BeforeGet = func(string, int) error {
					time.Sleep(test.takes)
					if test.started {
						server.StartTask("train")
					}
					return nil
				}
				found, err := client.Confirm(t.Context(), "train", ipcLock)
				if !errors.Is(err, test.want) || err == nil && found.Wrote == unchanged || client.Failing() {
					t.Errorf("Confirm gives %v, %v, want %v", found, err, test.want)
				}
				if looks := server.Looks("train"); looks != test.looks {
					t.Errorf("%d looks at the task, want %d", looks, test.looks)
				}
			})
		})
	}
}

// A look at the task that fails is no success.
func TestTaskThatIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server, _ := inMemory(t, Options{})
		server.Put("k8s.io", "train", storedspectest.TrainingSpec())
		server.NoTasks = status.Error(codes.Internal, "shutting down")
		server.AfterUpdate = func(string, int) error {
			time.Sleep(usual)
			return nil
		}
		if found, err := client.Confirm(t.Context(), "train", ipcLock); err == nil ||
			!strings.Contains(err.Error(), "shutting down") {
			t.Errorf("Confirm gives %v, %v", found, err)
		}
	})
}
