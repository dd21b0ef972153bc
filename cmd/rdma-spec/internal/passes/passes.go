// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package passes repeats a command's check of the node at an interval, and serves the latest result as metrics. It does
// not know what the command checks.
package passes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// Passes are looks at a node.
type Passes struct {
	Every   time.Duration // from the end of a look to the next one
	Address string        // where metrics are served; "": nowhere
	// Look looks once, and writes what it finds as metrics. If it writes nothing, it has failed, and the error says why.
	Look   func(ctx context.Context, metrics io.Writer) error
	Stderr io.Writer // where that is said, once until it changes
}

// found is what the last look that did not fail has found.
type found struct {
	at      time.Time
	metrics []byte
}

// Run looks until the context is done.
func (p Passes) Run(ctx context.Context) error {
	var last atomic.Pointer[found]
	if p.Address != "" {
		listener, err := net.Listen("tcp", p.Address)
		if err != nil {
			return fmt.Errorf("--http: %w: choose another ADDR, such as 127.0.0.1:9799", err)
		}
		server := &http.Server{ReadTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second, MaxHeaderBytes: 4 << 10,
			Handler: p.serve(&last)}
		defer func() { _ = server.Close() }() // a reader that is slow loses nothing
		failed := make(chan error, 1)
		go func() { failed <- server.Serve(listener) }()
		ended, stop := context.WithCancelCause(ctx)
		defer stop(nil)
		go func() { stop(<-failed) }()
		ctx = ended
	}
	p.look(ctx, &last)
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return fmt.Errorf("--http: %w", err)
	}
	return nil
}

func (p Passes) look(ctx context.Context, last *atomic.Pointer[found]) {
	for said := ""; ctx.Err() == nil; {
		var text bytes.Buffer
		err := p.Look(ctx, &text)
		switch {
		case text.Len() > 0:
			last.Store(&found{time.Now(), text.Bytes()})
			said = ""
		case ctx.Err() == nil && err != nil && said != err.Error():
			said = err.Error()
			fmt.Fprintf(p.Stderr, "rdma-spec: %v\n", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(p.Every):
		}
	}
}

// serve serves what was found last. It serves nothing where no look has succeeded for a while, so that monitoring sees
// that.
func (p Passes) serve(last *atomic.Pointer[found]) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		f := last.Load()
		if f == nil || time.Since(f.at) > 3*p.Every {
			http.Error(w, "no check of the node has succeeded recently: see the log", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write(f.metrics) // if it fails, the reader has gone
	}
}
