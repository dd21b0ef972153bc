// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Command reference is a minimal NRI plugin: it answers each CreateContainer with nothing, or with a fixed adjustment.
// The benchmark compares nri-rdma with it.
package main

import (
	"context"
	"log"
	"os"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"
)

type plugin struct {
	events     api.EventMask
	adjustment *api.ContainerAdjustment
}

func main() {
	socket := pflag.String("socket", api.DefaultSocketPath, "the runtime's NRI socket")
	fixed := pflag.String("adjustment", "",
		"answer with the adjustment in this `FILE`, a protobuf message; without it with none")
	post := pflag.Bool("post", false, "subscribe to PostCreateContainer as well")
	pflag.Parse()
	p := &plugin{}
	p.events.Set(api.Event_CREATE_CONTAINER)
	if *post {
		p.events.Set(api.Event_POST_CREATE_CONTAINER)
	}
	if *fixed != "" {
		data, err := os.ReadFile(*fixed)
		if err != nil {
			log.Fatal(err)
		}
		p.adjustment = &api.ContainerAdjustment{}
		if err := proto.Unmarshal(data, p.adjustment); err != nil {
			log.Fatalf("%s: %v", *fixed, err)
		}
	}
	s, err := stub.New(p, stub.WithPluginName("reference"), stub.WithPluginIdx("90"), stub.WithSocketPath(*socket))
	if err != nil {
		log.Fatal(err)
	}
	if err := s.Run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

// Configure subscribes to events.
func (p *plugin) Configure(context.Context, string, string, string) (api.EventMask,
	error) { //nolint:unparam // as the stub wants it
	return p.events, nil
}

// CreateContainer returns the fixed adjustment.
func (p *plugin) CreateContainer(context.Context, *api.PodSandbox, *api.Container) (*api.ContainerAdjustment,
	[]*api.ContainerUpdate, error) { //nolint:unparam // as the stub wants it
	return p.adjustment, nil, nil
}

// PostCreateContainer does nothing.
func (p *plugin) PostCreateContainer(context.Context, *api.PodSandbox, *api.Container) error {
	return nil
}
