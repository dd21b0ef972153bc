// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/cri"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/ask"
	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
)

// questions answers what the doctor asks about a live node.
func (o nodeOptions) questions() map[doctor.Question]doctor.Ask {
	return map[doctor.Question]doctor.Ask{
		doctor.QuestionKernelLog:  doctor.KernelLog(o.root),
		doctor.QuestionRuntimes:   ask.Runtimes(o.root),
		doctor.QuestionPlugin:     ask.Plugin(o.root),
		doctor.QuestionKubelet:    ask.Kubelet(o.root),
		doctor.QuestionConfigured: ask.Configured(o.root),
		doctor.QuestionCDI:        ask.CDI(o.root),
		doctor.QuestionContainers: func(ctx context.Context) ([]byte, error) {
			answer, err := o.containers(ctx, limits.New(o.root))
			if err != nil {
				return nil, err
			}
			return json.Marshal(answer)
		},
	}
}

// containers answers which RDMA containers run, as status sees them. Where no policy is in force, it still says what they hold.
func (o nodeOptions) containers(ctx context.Context, on *limits.Processes) (*doctor.Containers, error) {
	p, source, err := o.policy()
	answer := &doctor.Containers{Policy: source.String(), Containers: []doctor.Container{}}
	if err != nil {
		answer.Policy = ""
		if p, err = policy.New(policy.Default()); err != nil { // it tells RDMA containers, and judges none
			return nil, err
		}
	}
	found, err := o.surveyBy(ctx, p, source, on, nil)
	if err != nil {
		return nil, err
	}
	for _, r := range found.Containers {
		answer.Containers = append(answer.Containers, o.seen(r, answer.Policy != ""))
	}
	if found.failed > 0 {
		answer.Unknown = found.Notes
	}
	for _, c := range found.listed {
		counts := slices.ContainsFunc(found.Containers, func(r runningContainer) bool { return r.ID == c.ID })
		if counts || c.PID == 0 || c.AllDevices {
			continue
		}
		if paths := ask.HostPaths(o.root, c.PID); len(paths) > 0 {
			answer.Containers = append(answer.Containers, doctor.Container{
				Namespace: c.Namespace, Pod: c.Pod, Name: c.Name, State: string(stateOK), User: -1, HostPaths: paths,
			})
		}
	}
	return answer, nil
}

// seen is what the doctor is told of an RDMA container.
func (o nodeOptions) seen(r runningContainer, judged bool) doctor.Container {
	c := doctor.Container{
		Namespace: r.Namespace, Pod: r.Pod, Name: r.Container, RDMA: true, State: string(r.State), Repair: o.command("repair", r.pod()),
		IPCLock: r.IPCLock, AddsLock: slices.Contains(r.found.Spec.Bounding, spec.CapIPCLock), HostUsers: !r.UserNamespace,
		AllDevices: r.AllDevices, HCAs: r.HCAs, ConnectionManager: holdsConnectionManager(r.found),
	}
	for _, problem := range r.Problems {
		c.Problems = append(c.Problems, strings.TrimSuffix(problem, ": "+c.Repair))
	}
	if r.Memlock != nil {
		memlock := doctor.Bytes(r.Memlock.Soft)
		c.Memlock = &memlock
	}
	if judged && r.Wanted != nil {
		if r.Wanted.Memlock > 0 {
			wanted := doctor.Bytes(r.Wanted.Memlock)
			c.Wanted = &wanted
		}
		c.Lacks = len(r.Wanted.Devices) > 0 && len(r.HCAs) == 0
	}
	if !judged {
		c.State, c.Problems = string(stateUnknown), nil
	}
	ask.Sight(o.root, r.PID, &c)
	return c
}

// holdsConnectionManager reports whether a container has rdma_cm.
func holdsConnectionManager(c cri.Container) bool {
	return c.AllDevices || slices.ContainsFunc(c.Devices, func(d policy.Device) bool { return strings.HasSuffix(d.Path, "/rdma_cm") })
}
