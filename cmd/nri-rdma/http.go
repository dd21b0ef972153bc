// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/plugin"
	"github.com/rdma-spec/rdma-spec/plugin/localrpc"
)

// inUnix begins an address that is a Unix socket's: where processes that replace each other share a network, each has
// one of its own.
const inUnix = "unix:"

// serveHTTP serves what monitoring asks for at an address, until stop.
func serveHTTP(address string, p *plugin.Plugin, log logrus.FieldLogger,
	more ...prometheus.Collector) (stop func(), err error) {
	network := "tcp"
	at := address
	if path, found := strings.CutPrefix(address, inUnix); found {
		network = "unix"
		at = path
		if there, err := os.Lstat(path); err == nil && there.Mode().Type() == os.ModeSocket {
			_ = os.Remove(path) // that of a container before this one: the directory is the pod's
		}
	}
	listener, err := net.Listen(network, at)
	if err != nil {
		var cause *net.OpError
		if errors.As(err, &cause) {
			err = cause.Err
		}
		return nil, fmt.Errorf("--http %s: %w: choose another ADDR, such as 127.0.0.1:9797", address, err)
	}
	server := newServer(p, log, more...)
	go func() {
		if err := server.Serve(limitConnections(server, listener)); !errors.Is(err, http.ErrServerClosed) {
			log.WithError(err).Error("cannot serve metrics any longer")
		}
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			_ = server.Close() // a reader is slow: nothing is lost with it
		}
	}, nil
}

// serveRegistered serves the same once the plugin is registered, until the context is done: the process before has the
// address until it ends.
func serveRegistered(ctx context.Context, address string, p *plugin.Plugin, log logrus.FieldLogger,
	more ...prometheus.Collector) {
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for said := ""; ; {
		if p.Registered() {
			stop, err := serveHTTP(address, p, log, more...)
			if err == nil {
				<-ctx.Done()
				stop()
				return
			}
			if said != err.Error() {
				said = err.Error()
				log.WithError(err).Warn("cannot serve metrics until the address is free")
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}

// askReady asks the plugin that serves at a Unix socket whether it is ready, as the kubelet does in a pod that shares
// the node's network, and returns the exit status.
func askReady(socket string, out io.Writer) int {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return localrpc.Dial(ctx, socket) },
	}}
	answer, err := client.Get("http://nri-rdma/readyz")
	if err != nil {
		fmt.Fprintf(out, "nri-rdma: %v\n", err)
		return 1
	}
	defer func() { _ = answer.Body.Close() }() // as much as was wanted was read
	_, _ = io.Copy(out, io.LimitReader(answer.Body, 4<<10))
	if answer.StatusCode != http.StatusOK {
		return 1
	}
	return 0
}

// newServer serves /metrics, with the plugin's collectors and more; /healthz, which fails when the plugin does not
// answer requests; and /readyz, which fails until it is registered with the runtime, has a configuration, and
// recognises devices.
func newServer(p *plugin.Plugin, log logrus.FieldLogger, more ...prometheus.Collector) *http.Server {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", serveMetrics(newRegistry(p, more...), log))
	answer := func(healthy func() (well string, err error)) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			well, err := healthy()
			if err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintln(w, well)
		}
	}
	mux.HandleFunc("GET /healthz", answer(func() (string, error) { return "alive", p.Alive() }))
	mux.HandleFunc("GET /readyz", answer(p.Ready))
	return &http.Server{
		Handler: mux, ReadTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute,
		ErrorLog:       stdlog.New(warnings{log}, "", 0),
		MaxHeaderBytes: 4 << 10, // Go's default of 1 MiB, on each connection, is more memory than the plugin may have
	}
}

// warnings writes what package net/http says, such as that no descriptor is left, to the log.
type warnings struct{ logrus.FieldLogger }

func (w warnings) Write(line []byte) (int, error) {
	w.Warn(strings.TrimSpace(string(line)))
	return len(line), nil
}
