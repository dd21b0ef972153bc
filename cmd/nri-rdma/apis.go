// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/plugin"
	"github.com/rdma-spec/rdma-spec/plugin/breaker"
	"github.com/rdma-spec/rdma-spec/plugin/podresources"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec"
)

// apis are the clients of the APIs of containerd and the kubelet for one kind of work. Each kind has its own breakers:
// if calls of repair fail, containers that are created still get CAP_IPC_LOCK and what rules by resource give.
type apis struct {
	path      string // creation or repair
	specs     *storedspec.Client
	resources *podresources.Client
}

// repairBudget is how long a call of repair may take: no container waits for it.
const repairBudget = 2 * time.Second

// newAPIs prepares the clients for containers that are created, whose requests have a deadline, and for those that run.
// They connect when they are first used.
func newAPIs(o options, log logrus.FieldLogger) (creation, repair apis) {
	clients := func(path string, budget time.Duration, withoutSpecs, withoutResources string) apis {
		return apis{path, storedspec.New(storedspec.Options{
			Address: o.containerd, Root: o.root, Namespace: o.namespace, Budget: budget, OnChange: logBreaker(log,
				"containerd's API", withoutSpecs),
		}), podresources.New(podresources.Options{
			Socket: o.podResourcesSocket, Budget: budget, OnChange: logBreaker(log,
				"the kubelet's pod resources API", withoutResources),
		})}
	}
	creation = clients("creation", 0, "RDMA containers get no CAP_IPC_LOCK until it answers",
		"until it answers, RDMA containers that a rule by resource may match are refused, and containers without another "+
			"signal get nothing")
	repair = clients("repair", repairBudget,
		"until it answers, the stored specs of running containers are not compared with the policy",
		"until it answers, running containers that only a resource makes RDMA containers are not compared with the policy")
	return creation, repair
}

// collectors returns the metrics of the breakers.
func (a apis) collectors() []prometheus.Collector {
	failing := func(api string, is func() bool) prometheus.Collector {
		return plugin.Flag("api_failing", "1 from three failed calls of an API in a row until it answers again, by what it "+
			"is used for (creation, repair).", prometheus.Labels{"api": api, "path": a.path}, is)
	}
	return []prometheus.Collector{failing("containerd", a.specs.Failing), failing("kubelet", a.resources.Failing)}
}

// logBreaker returns a function that logs when a breaker opens, with its consequence, and when the API has answered
// again.
func logBreaker(log logrus.FieldLogger, api, consequence string) func(open bool) {
	return func(open bool) {
		if open {
			log.Warnf("%s failed %d times in a row: it is not called for %s, so that no container waits for it; %s",
				api, breaker.Failures, breaker.OpenFor, consequence)
			return
		}
		log.Infof("%s answers again", api)
	}
}
