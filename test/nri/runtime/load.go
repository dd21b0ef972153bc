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

// creation is the result of a container's creation. Its times show how long the kubelet waited.
type creation struct {
	ID           string
	RDMA         bool   // the container has a verbs device
	Adjusted     bool   // the plugin answered
	Wrong        string // what is wrong with the plugin's answer, or the creation's error; "" if nothing
	Began, Ended time.Time
}

// load creates containers.
type load struct {
	*containerd
	memlock uint64 // the memlock that the policy grants
	device  *api.LinuxDevice

	mu        sync.Mutex
	creations []creation
}

// large is the source of the environment of a tenth of the containers, which is between 100 and 400 kB.
var large = strings.Repeat("0123456789abcdef", 400_000/16)

// run creates one container after another. The pauses between them are random, and at most pause long. seed is the seed
// of the random numbers. 2 ms is more load than the kubelet causes.
func (l *load) run(name string, seed uint64, pause time.Duration) {
	random := rand.New(rand.NewPCG(seed, 0))
	for n := 0; ; n++ {
		time.Sleep(time.Duration(random.Int64N(int64(pause))))
		id := fmt.Sprint(name, "-", n)
		ctr := &api.Container{Id: id, Name: id, PodSandboxId: pod.Id}
		// Each container has a different hard limit, which the plugin keeps. So its answer shows to which request it belongs.
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
