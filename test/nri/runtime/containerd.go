// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/sirupsen/logrus"
)

// containerd does what containerd's package internal/nri does around NRI. The lock is containerd's own: a request takes
// this lock first, and NRI's lock second. NRI's calls of synchronise and update take this lock, too. NRI before 0.12.3
// holds its own lock during update (containerd#13733).
type containerd struct {
	nri *adaptation.Adaptation

	stopping *adaptation.PluginSyncBlock // set while a container is being stopped; no plugin is registered then

	mu         sync.Mutex
	containers map[string]*api.Container // sent to a plugin that registers
}

var pod = &api.PodSandbox{Id: "pod", Name: "train", Namespace: "default"}

func newContainerd(socket string, timeout time.Duration) (*containerd, error) {
	logrus.AddHook(&noticed)
	adaptation.SetPluginRequestTimeout(timeout)
	c := &containerd{containers: map[string]*api.Container{}}
	for n := range 20 {
		id := fmt.Sprint("existing-", n)
		c.containers[id] = &api.Container{Id: id, Name: id, PodSandboxId: pod.Id}
	}
	var err error
	c.nri, err = adaptation.New("containerd", "v2.1.0", c.synchronise, c.update, adaptation.WithSocketPath(socket),
		adaptation.WithPluginPath("/nonexistent"), adaptation.WithPluginConfigPath("/nonexistent"))
	if err != nil {
		return nil, err
	}
	return c, c.nri.Start()
}

// create does what CRI's CreateContainer does. No plugin can register until all plugins have received both requests.
func (c *containerd) create(ctx context.Context, ctr *api.Container) (*api.ContainerAdjustment, error) {
	defer c.nri.BlockPluginSync().Unblock()
	var answer *api.CreateContainerResponse
	err := c.locked(func() (err error) {
		answer, err = c.nri.CreateContainer(ctx, &api.CreateContainerRequest{Pod: pod, Container: ctr})
		return err
	})
	if err != nil {
		return nil, err
	}
	return answer.GetAdjust(), c.locked(func() error {
		c.containers[ctr.Id] = ctr
		return c.nri.PostCreateContainer(ctx, &adaptation.PostCreateContainerRequest{Pod: pod, Container: ctr})
	})
}

// run carries out the rest of a container's life: the container is started and removed.
func (c *containerd) run(ctx context.Context, ctr *api.Container) error {
	defer c.nri.BlockPluginSync().Unblock()
	err := c.locked(func() error {
		return c.nri.StartContainer(ctx, &adaptation.StartContainerRequest{Pod: pod, Container: ctr})
	})
	if err != nil {
		return err
	}
	return c.locked(func() error {
		delete(c.containers, ctr.Id)
		return c.nri.RemoveContainer(ctx, &adaptation.RemoveContainerRequest{Pod: pod, Container: ctr})
	})
}

func (c *containerd) locked(do func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return do()
}

func (c *containerd) synchronise(ctx context.Context, plugin adaptation.SyncCB) error {
	return c.locked(func() error {
		var all []*api.Container
		for _, ctr := range c.containers {
			all = append(all, ctr)
		}
		_, err := plugin(ctx, []*api.PodSandbox{pod}, all)
		return err
	})
}

func (c *containerd) update(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	return nil, c.locked(func() error { return nil })
}

// noticed counts the events that the runtime notices.
var noticed = counters{counts: map[string]int{}}

type counters struct {
	mu     sync.Mutex
	counts map[string]int
}

func (c *counters) add(what string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[what] += n
}

// Levels implements logrus.Hook.
func (c *counters) Levels() []logrus.Level { return logrus.AllLevels }

// Fire counts what NRI and ttrpc report only in their logs. An answer on an inactive stream is a second answer, or an
// answer to a request that has timed out.
func (c *counters) Fire(e *logrus.Entry) error {
	for what, is := range map[string]bool{
		"Registered":    strings.HasSuffix(e.Message, "connected and synchronized"),
		"Closed":        strings.HasPrefix(e.Message, "connection to plugin") && strings.HasSuffix(e.Message, "closed"),
		"SecondAnswers": strings.Contains(e.Message, "inactive stream"),
		"TimedOut":      strings.HasSuffix(e.Message, "deadline exceeded"),
	} {
		if is {
			c.add(what, 1)
		}
	}
	return nil
}
