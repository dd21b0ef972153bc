// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/loopback"
)

// TestServe: what a look finds is served, also where something is wrong; a look that fails is no look.
func TestServe(t *testing.T) {
	for name, test := range map[string]struct {
		text   string
		err    error
		status int
		want   string
	}{
		"a fault":       {"found 1\n", errors.New("a problem was found"), http.StatusOK, "found 1\n"},
		"not looked at": {"", errors.New("no HCA answers"), http.StatusServiceUnavailable, "the log says why"},
	} {
		t.Run(name, func(t *testing.T) {
			address := loopback.Address()
			ctx, stop := context.WithCancel(t.Context())
			ended, looked := make(chan error, 1), make(chan struct{}, 1)
			go func() {
				ended <- serve(ctx, address, io.Discard, func(w io.Writer) error {
					_, err := io.WriteString(w, test.text)
					looked <- struct{}{}
					return errors.Join(err, test.err)
				})
			}()
			<-looked
			await.That(t, await.Patience, "the answer "+test.want, func() bool {
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

func TestServeSaysWhyNot(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close() //nolint:errcheck // the test is over
	err = serve(t.Context(), taken.Addr().String(), io.Discard, func(io.Writer) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "--http: ") || !strings.Contains(err.Error(), "choose another ADDR") {
		t.Errorf("error %v, want what to do", err)
	}
}
