// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package passes

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/loopback"
)

// TestPasses_Metrics: what a look finds is served, also where something is wrong; a look that fails is no look.
func TestPasses_Metrics(t *testing.T) {
	for name, test := range map[string]struct {
		text   string
		err    error
		status int
		want   string
	}{
		"a fault":     {"found 1\n", errors.New("a problem was found"), http.StatusOK, "found 1\n"},
		"not checked": {"", errors.New("no HCA answers"), http.StatusServiceUnavailable, "see the log"},
	} {
		t.Run(name, func(t *testing.T) {
			address := loopback.Address()
			ctx, stop := context.WithCancel(t.Context())
			ended, looked := make(chan error, 1), make(chan struct{}, 1)
			go func() {
				ended <- Passes{Every: time.Minute, Address: address, Stderr: io.Discard,
					Look: func(_ context.Context, w io.Writer) error {
						_, err := io.WriteString(w, test.text)
						looked <- struct{}{}
						return errors.Join(err, test.err)
					}}.Run(ctx)
			}()
			<-looked
			await.That(t, await.Timeout, "the answer "+test.want, func() bool {
				asked, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/metrics", http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				answer, err := http.DefaultClient.Do(asked)
				if err != nil {
					return false
				}
				text, err := io.ReadAll(answer.Body)
				_ = answer.Body.Close() // it was read whole
				return err == nil && answer.StatusCode == test.status && strings.Contains(string(text), test.want)
			})
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPasses_AddressTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close() //nolint:errcheck // the test is over
	err = Passes{Every: time.Minute, Address: taken.Addr().String(), Stderr: io.Discard,
		Look: func(context.Context, io.Writer) error { return nil }}.Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "--http: ") || !strings.Contains(err.Error(), "choose another ADDR") {
		t.Errorf("error %v, want what to do", err)
	}
}

// TestPasses_SaysOnce: why a look fails is said once, until it succeeds or fails for another reason.
func TestPasses_SaysOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var said strings.Builder
		results := []string{"a", "a", "b", "", "b", "b"}
		looks := 0
		err := Passes{Every: time.Minute, Stderr: &said, Look: func(_ context.Context, w io.Writer) error {
			defer func() { looks++ }()
			if looks == len(results) {
				stop()
				return nil
			}
			if results[looks] == "" {
				_, err := io.WriteString(w, "found 1\n")
				return err
			}
			return errors.New(results[looks])
		}}.Run(ctx)
		if want := "rdma-spec: a\nrdma-spec: b\nrdma-spec: b\n"; err != nil || said.String() != want {
			t.Errorf("%v; said:\n%swant:\n%s", err, said.String(), want)
		}
	})
}
