// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/sirupsen/logrus"
)

// creation is what became of a creation. Its times say how long the kubelet waited.
type creation struct {
	ID           string
	RDMA         bool   // it holds a verbs device
	Adjusted     bool   // the plugin answered
	Wrong        string // what is wrong with the answer, or the creation's error
	Began, Ended time.Time
}

// load creates containers.
type load struct {
	*containerd
	memlock uint64 // that the policy gives
	device  *api.LinuxDevice

	mu        sync.Mutex
	creations []creation
}

// large is what a tenth of the containers have in their environment, from 100 to 400 kB of it.
var large = strings.Repeat("0123456789abcdef", 400_000/16)

// run creates one container after another, with pauses of at most some time, and random numbers from a seed. 2 ms is as
// much load as the kubelet makes, and more.
func (l *load) run(name string, seed uint64, pause time.Duration) {
	random := rand.New(rand.NewPCG(seed, 0))
	for n := 0; ; n++ {
		time.Sleep(time.Duration(random.Int64N(int64(pause))))
		id := fmt.Sprint(name, "-", n)
		ctr := &api.Container{Id: id, Name: id, PodSandboxId: pod.Id}
		// Each container has a hard limit of its own, which the plugin keeps: so its answer tells which request it is to.
		hard := l.memlock + random.Uint64N(1<<40)
		ctr.Rlimits = []*api.POSIXRlimit{{Type: "RLIMIT_MEMLOCK", Soft: 8 << 10, Hard: hard}}
		rdma := random.IntN(4) > 0
		if rdma {
			ctr.Linux = &api.LinuxContainer{Devices: []*api.LinuxDevice{l.device}}
		}
		if random.IntN(10) == 0 {
			ctr.Env = []string{"LARGE=" + large[:100_000+random.IntN(300_000)]}
		}
		made := creation{ID: id, RDMA: rdma, Began: time.Now()}
		adjustment, err := l.create(context.Background(), ctr)
		made.Ended = time.Now()
		limits := adjustment.GetRlimits()
		made.Adjusted = len(limits) > 0
		switch {
		case err != nil:
			made.Wrong = err.Error()
		case made.Adjusted && (!rdma || len(limits) != 1 || limits[0].GetSoft() != l.memlock || limits[0].GetHard() != hard):
			made.Wrong = fmt.Sprintf("the answer to another request: %v, want the limits %d and %d", limits, l.memlock, hard)
		}
		l.record(name, made)
		if err := l.containerd.run(context.Background(), ctr); err != nil {
			logrus.Errorf("%s: %v", id, err)
		}
	}
}

func (l *load) record(goroutine string, made creation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.creations = append(l.creations, made)
	noticed.add(goroutine, 1)
	if made.Adjusted {
		noticed.add("Adjusted", 1)
	}
}
