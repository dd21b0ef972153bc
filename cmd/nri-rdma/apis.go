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

// apis contains the clients for containerd and the kubelet. Background work uses a separate client and breaker, so that
// failed background calls do not keep new containers from getting CAP_IPC_LOCK.
type apis struct {
	specs     *storedspec.Client
	resources *podresources.Client
	beside    *storedspec.Client
}

// besideBudget limits the time for a background call. No container waits for a background call.
const besideBudget = 2 * time.Second

// newAPIs creates the clients. Each client connects at its first call.
func newAPIs(o options, log logrus.FieldLogger) apis {
	specs := func(budget time.Duration, without string) *storedspec.Client {
		return storedspec.New(storedspec.Options{Address: o.containerd, Root: o.root, Namespace: o.namespace, Budget: budget,
			OnChange: logBreaker(log, "containerd's API", without)})
	}
	return apis{
		specs:  specs(0, "until the API responds, RDMA containers do not get CAP_IPC_LOCK"),
		beside: specs(besideBudget, "until the API responds, the plugin does not compare running containers with the policy"),
		resources: podresources.New(podresources.Options{Socket: o.podResourcesSocket, OnChange: logBreaker(log,
			"the kubelet's pod resources API", "until the API responds, the plugin refuses RDMA containers that a rule "+
				"with resources might match, and grants nothing to containers whose only possible signal is a resource")}),
	}
}

// collectors returns the breakers' metrics.
func (a apis) collectors() []prometheus.Collector {
	failing := func(api, path string, is func() bool) prometheus.Collector {
		return plugin.Flag("api_failing", "1 after three consecutive failed calls to an API, until the API responds. "+
			"The path label is \"creation\" if the creation of a container waits for the call, and \"beside\" for background "+
			"work.",
			prometheus.Labels{"api": api, "path": path}, is)
	}
	return []prometheus.Collector{failing("containerd", "creation", a.specs.Failing),
		failing("containerd", "beside", a.beside.Failing), failing("kubelet", "creation", a.resources.Failing)}
}

// logBreaker returns a function that logs two events: the breaker opens (with the consequence), and the API responds
// again.
func logBreaker(log logrus.FieldLogger, api, consequence string) func(open bool) {
	return func(open bool) {
		if open {
			log.Warnf("%s failed %d times in a row, so calls to it are paused for %s: %s",
				api, breaker.Failures, breaker.OpenFor, consequence)
			return
		}
		log.Infof("%s responds again", api)
	}
}
