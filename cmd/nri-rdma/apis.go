// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"

	"github.com/rdma-spec/rdma-spec/plugin/breaker"
	"github.com/rdma-spec/rdma-spec/plugin/podresources"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec"
)

// containerdOptions say how containerd's own API is reached, through which CAP_IPC_LOCK is given.
type containerdOptions struct{ containerd, namespace string }

func (o *containerdOptions) addContainerdFlags(f *pflag.FlagSet) {
	f.StringVar(&o.containerd, "containerd-address", "", "containerd's socket `PATH`, for CAP_IPC_LOCK; without it the usual places below the root")
	f.StringVar(&o.namespace, "containerd-namespace", storedspec.DefaultNamespace, "containerd's namespace of the pods' containers")
}

// apis are the clients of the APIs of containerd and the kubelet, for one kind of work: each has breakers of its own, so that a pass over
// the containers that run, whose calls fail, does not keep containers that are created from CAP_IPC_LOCK and from rules by resource.
type apis struct {
	path      string // creation or repair
	specs     *storedspec.Client
	resources *podresources.Client
}

// repairBudget is how long a call of the passes may take: no container waits for it.
const repairBudget = 2 * time.Second

// newAPIs prepares the clients for containers that are created, and for those that run. They connect when they are first used.
func newAPIs(o options, log logrus.FieldLogger) (creation, repair apis) {
	clients := func(path string, budget time.Duration, withoutSpecs, withoutResources string) apis {
		return apis{path, storedspec.New(storedspec.Options{
			Address: o.containerd, Root: o.root, Namespace: o.namespace, Budget: budget, OnChange: sayRest(log, "containerd's API", withoutSpecs),
		}), podresources.New(podresources.Options{
			Socket: o.podResourcesSocket, Budget: budget, OnChange: sayRest(log, "the kubelet's pod resources API", withoutResources),
		})}
	}
	creation = clients("creation", o.budget, "RDMA containers get no CAP_IPC_LOCK until it answers",
		"until it answers, RDMA containers that a rule by resource might be about are refused, and containers without another signal are left alone")
	repair = clients("repair", repairBudget, "until it answers, the stored specs of containers that run are not compared with the policy",
		"until it answers, containers that run and that only a rule by resource might be about are not compared with the policy")
	return creation, repair
}

// collectors tells, when they are asked for, whether the APIs are left alone.
func (a apis) collectors() []prometheus.Collector {
	return []prometheus.Collector{breakerOpen("containerd", a.path, a.specs.Open), breakerOpen("kubelet", a.path, a.resources.Open)}
}

// sayRest returns what tells when an API is left alone because it does not answer, what that means, and when it has answered again.
func sayRest(log logrus.FieldLogger, api, meanwhile string) func(resting bool) {
	return func(resting bool) {
		if resting {
			log.Warnf("%s failed %d times in a row: it is left alone and tried again after %s, so that no container waits for it; %s",
				api, breaker.Failures, breaker.OpenFor, meanwhile)
			return
		}
		log.Infof("%s answers again", api)
	}
}

// breakerOpen tells, when it is asked for, whether an API is left alone.
func breakerOpen(api, path string, resting func() bool) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "nri_rdma", Name: "breaker_open", ConstLabels: prometheus.Labels{"api": api, "path": path},
		Help: "1 while an API is left alone because it failed three times in a row, by what it is used for (creation, repair).",
	}, func() float64 {
		if resting() {
			return 1
		}
		return 0
	})
}
