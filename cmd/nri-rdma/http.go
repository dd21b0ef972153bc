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

// inUnix is the prefix of a Unix socket's address. If a process replaces another process in the same network namespace,
// each process needs its own socket.
const inUnix = "unix:"

// serveHTTP serves metrics and health checks at an address until the caller calls stop.
func serveHTTP(address string, p *plugin.Plugin, log logrus.FieldLogger,
	more ...prometheus.Collector) (stop func(), err error) {
	network := "tcp"
	at := address
	if path, found := strings.CutPrefix(address, inUnix); found {
		network = "unix"
		at = path
		if there, err := os.Lstat(path); err == nil && there.Mode().Type() == os.ModeSocket {
			_ = os.Remove(path) // the socket is from an earlier container: the directory belongs to the pod
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
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.WithError(err).Error("the server for metrics and health checks failed")
		}
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			_ = server.Close() // a client is slow; closing the connections loses nothing
		}
	}, nil
}

// serveRegistered serves metrics and health checks from the registration of the plugin until the context is done.
// Before the registration, the previous process uses the address.
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

// askReady asks the plugin at a Unix socket whether the plugin is ready, and returns the exit status. In pods with host
// networking, the kubelet runs this check as a probe.
func askReady(socket string, out io.Writer) int {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return localrpc.Dial(ctx, socket) },
	}}
	answer, err := client.Get("http://nri-rdma/readyz")
	if err != nil {
		fmt.Fprintf(out, "nri-rdma: %v\n", err)
		return 1
	}
	defer func() { _ = answer.Body.Close() }() // the response was read
	_, _ = io.Copy(out, io.LimitReader(answer.Body, 4<<10))
	if answer.StatusCode != http.StatusOK {
		return 1
	}
	return 0
}

// newServer returns a server for /metrics, /healthz, and /readyz. /metrics contains the plugin's metrics and those of
// the given collectors. /healthz fails if the plugin does not respond to requests. /readyz fails until the plugin is
// registered with the runtime, has a configuration, and recognizes devices.
func newServer(p *plugin.Plugin, log logrus.FieldLogger, more ...prometheus.Collector) limitedServer {
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
	return limitedServer{&http.Server{
		Handler: mux, ReadTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute,
		ErrorLog:       stdlog.New(warnings{log}, "", 0),
		MaxHeaderBytes: 4 << 10, // Go's default, 1 MiB for each connection, exceeds the plugin's memory
	}}
}

// warnings logs messages from package net/http, for example that no file descriptor is left.
type warnings struct{ logrus.FieldLogger }

func (w warnings) Write(line []byte) (int, error) {
	w.Warn(strings.TrimSpace(string(line)))
	return len(line), nil
}
