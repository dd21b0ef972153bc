// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/ask"
	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
)

// questions answers what the doctor asks about a live node, whose containers surveyed returns.
func (o nodeOptions) questions(surveyed func(context.Context) (*survey, error)) map[doctor.Question]doctor.Ask {
	return map[doctor.Question]doctor.Ask{
		doctor.QuestionKernelLog:  doctor.KernelLog(o.root),
		doctor.QuestionRuntimes:   ask.Runtimes(o.root),
		doctor.QuestionPlugin:     ask.Plugin(o.root, version),
		doctor.QuestionKubelet:    ask.Kubelet(o.root),
		doctor.QuestionConfigured: ask.Configured(o.root),
		doctor.QuestionCDI:        ask.CDI(o.root, o.hcas),
		doctor.QuestionContainers: func(ctx context.Context) (any, error) {
			found, err := surveyed(ctx)
			if err != nil {
				return nil, err
			}
			return o.containers(found), nil
		},
	}
}

// surveyAnyhow is the survey of all containers. If there is no policy, it uses the default one, which recognizes RDMA containers, and
// unjudged says why; also if the survey comes with an error.
func (o nodeOptions) surveyAnyhow(ctx context.Context) (*survey, error) {
	p, source, unjudged := o.policy()
	if unjudged != nil {
		var err error
		if p, err = policy.New(policy.Default()); err != nil {
			return &survey{unjudged: unjudged}, err
		}
	}
	found, err := o.surveyBy(ctx, p, source, limits.New(o.root), nil)
	if err != nil {
		found = &survey{}
	}
	found.unjudged = unjudged
	return found, err
}

// containers are the RDMA containers of a survey, and what they see. Where there is no policy, they are not judged.
func (o nodeOptions) containers(found *survey) doctor.Containers {
	answer := doctor.Containers{Containers: []doctor.Container{}}
	if found.unjudged == nil {
		answer.Policy = found.Policy.String()
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
	return answer
}

// seen is what the doctor is told of an RDMA container.
func (o nodeOptions) seen(r runningContainer, judged bool) doctor.Container {
	c := doctor.Container{
		Namespace: r.Namespace, Pod: r.Pod, Name: r.Container, RDMA: true, State: string(r.State), Repair: o.command("repair", r.pod()),
		IPCLock: r.IPCLock, AddsLock: slices.Contains(r.found.Spec.Bounding, spec.CapIPCLock), HostUsers: !r.UserNamespace,
		AllDevices: r.AllDevices, HCAs: r.HCAs, GIDIndex: r.found.Spec.GIDIndex,
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
	ask.Sight(o.root, r.PID, max(o.patience, doctor.Patience), &c)
	return c
}
