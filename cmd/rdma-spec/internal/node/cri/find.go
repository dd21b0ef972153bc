// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/plugin/storedspec/places"
)

// Where else an endpoint may be named, as for crictl.
const (
	endpointVariable = "CONTAINER_RUNTIME_ENDPOINT"
	crictlConfig     = "/etc/crictl.yaml"
)

// Connect connects to the runtimes that serve CRI on a node: to the one at the endpoint, /path or unix:///path. Without
// an endpoint, CONTAINER_RUNTIME_ENDPOINT names it, else /etc/crictl.yaml below the root, whose path is below the root
// as well. Where nothing names one, all usual places below the root are tried at once; skipped has an error for each
// that does not serve CRI, and for each that takes longer than that time although another one serves. The caller closes
// the runtimes.
func Connect(ctx context.Context, endpoint, root string, within time.Duration) (runtimes []*Runtime,
	skipped []error, err error) {
	socket, err := named(endpoint, root)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, alone*within)
	defer cancel()
	if socket != "" {
		r, err := connect(ctx, socket)
		if err != nil {
			return nil, nil, err
		}
		return []*Runtime{r}, nil, nil
	}
	sockets := places.Present(usual(root))
	if len(sockets) == 0 {
		return nil, nil, fmt.Errorf("no container runtime has a socket at %s: name it with --runtime-endpoint",
			strings.Join(usual(root), ", "))
	}
	found, failed := make([]*Runtime, len(sockets)), make([]error, len(sockets))
	answered := make(chan struct{}, len(sockets)) // receives for each that serves CRI
	var all sync.WaitGroup
	for i, socket := range sockets {
		all.Go(func() {
			if found[i], failed[i] = connect(ctx, socket); failed[i] == nil {
				answered <- struct{}{}
			}
		})
	}
	enough := time.AfterFunc(within, func() {
		select {
		case <-answered:
			cancel()
		case <-ctx.Done():
		}
	})
	defer enough.Stop()
	all.Wait()
	runtimes = slices.DeleteFunc(found, func(r *Runtime) bool { return r == nil })
	skipped = slices.DeleteFunc(failed, func(err error) bool { return err == nil })
	if len(runtimes) == 0 {
		together := skipped[0]
		for _, err := range skipped[1:] {
			together = fmt.Errorf("%w; %w", together, err)
		}
		return nil, nil, together
	}
	return runtimes, skipped, nil
}

// named returns the socket that somebody names; "" where nobody does.
func named(endpoint, root string) (socket string, err error) {
	if endpoint != "" {
		return path(endpoint, "--runtime-endpoint")
	}
	if endpoint = os.Getenv(endpointVariable); endpoint != "" {
		return path(endpoint, endpointVariable)
	}
	var config struct {
		Endpoint string `json:"runtime-endpoint"`
	}
	file := filepath.Join(root, crictlConfig)
	text, err := os.ReadFile(file)
	if err == nil {
		err = yaml.Unmarshal(text, &config)
	}
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("%s: %w", file, err)
	case config.Endpoint == "":
		return "", nil
	}
	socket, err = path(config.Endpoint, file)
	return filepath.Join(root, socket), err
}

// path returns the path of an endpoint that somebody names.
func path(endpoint, by string) (string, error) {
	path := strings.TrimPrefix(endpoint, "unix://")
	if !strings.HasPrefix(path, "/") {
		return "", fmt.Errorf("%s names %q: write a socket's path, as in unix:///run/containerd/containerd.sock", by,
			endpoint)
	}
	return path, nil
}

// usual returns the usual places below a root: containerd itself, CRI-O, and the containerds that platforms bring.
func usual(root string) []string {
	return places.Sockets(root, slices.Insert(slices.Clone(places.Containerds), 1, places.CRIO)...)
}
