// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package passes repeats a command's check of the node at an interval, and serves the latest result as metrics. The
// package is independent of the command.
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

// Passes are repeated checks of a node.
type Passes struct {
	Every   time.Duration // from the end of a check to the start of the next one
	Address string        // where metrics are served; if empty, no metrics are served
	// Look checks the node once, and writes the result as metrics. If Look fails, it writes nothing, and returns the
	// reason.
	Look   func(ctx context.Context, metrics io.Writer) error
	Stderr io.Writer // receives each error, once until the error changes
}

// found is the result of the last successful check.
type found struct {
	at      time.Time
	metrics []byte
}

// Run repeats the check until the context is done.
func (p Passes) Run(ctx context.Context) error {
	var last atomic.Pointer[found]
	if p.Address != "" {
		listener, err := net.Listen("tcp", p.Address)
		if err != nil {
			return fmt.Errorf("--http: %w: choose another ADDR, such as 127.0.0.1:9799", err)
		}
		server := &http.Server{ReadTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second, MaxHeaderBytes: 4 << 10,
			Handler: p.serve(&last)}
		defer func() { _ = server.Close() }() // a slow reader loses nothing important
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

// serve serves the latest result. If no check has succeeded for a while, it serves an error, so that monitoring
// notices.
func (p Passes) serve(last *atomic.Pointer[found]) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		f := last.Load()
		if f == nil || time.Since(f.at) > 3*p.Every {
			http.Error(w, "no check of the node has succeeded recently: see the log", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write(f.metrics) // if the write fails, the reader is gone
	}
}
