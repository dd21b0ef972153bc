// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// every is how often a doctor that serves looks at the node, as deploy/systemd/rdma-spec-doctor.timer does.
const every = 2 * time.Minute

// serve looks at the node again and again until the context ends, and serves what it found last as metrics. It serves
// none where no look has succeeded for a while, so that monitoring sees that.
func serve(ctx context.Context, address string, stderr io.Writer, look func(io.Writer) error) error {
	type seen struct {
		at      time.Time
		metrics []byte
	}
	var last atomic.Pointer[seen]
	server := &http.Server{
		Addr: address, ReadTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second, MaxHeaderBytes: 4 << 10,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			s := last.Load()
			if s == nil || time.Since(s.at) > 3*every {
				http.Error(w, "no look at the node has ended lately: the log says why", http.StatusServiceUnavailable)
				return
			}
			_, _ = w.Write(s.metrics) // if it fails, the reader has gone
		}),
	}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go func() {
		for ctx.Err() == nil {
			var text bytes.Buffer
			if err := look(&text); text.Len() == 0 {
				fmt.Fprintf(stderr, "rdma-spec: %v\n", err)
			} else {
				last.Store(&seen{time.Now(), text.Bytes()})
			}
			select {
			case <-ctx.Done():
			case <-time.After(every):
			}
		}
	}()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("--http: %w: choose another ADDR, as in 127.0.0.1:9799", err)
	}
	return nil
}
