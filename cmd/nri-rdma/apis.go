// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
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

// newStoredSpecs prepares the client of containerd. It connects when the first container is to get CAP_IPC_LOCK.
func newStoredSpecs(o options, log logrus.FieldLogger) *storedspec.Client {
	return storedspec.New(storedspec.Options{
		Address: o.containerd, Root: o.root, Namespace: o.namespace, Budget: o.budget,
		OnRest: sayRest(log, "containerd's API", "RDMA containers get no CAP_IPC_LOCK until it answers"),
	})
}

// newResources prepares the client of the kubelet. It connects when the policy first needs to know what a container holds.
func newResources(o options, log logrus.FieldLogger) *podresources.Client {
	return podresources.New(podresources.Options{
		Socket: o.podResourcesSocket, Budget: o.budget,
		OnRest: sayRest(log, "the kubelet's pod resources API", "until it answers, RDMA containers that a rule by resource might be about are refused, and containers without another signal are left alone"),
	})
}

// sayRest gives what tells when an API is left alone because it does not answer, what that means, and when it has answered again.
func sayRest(log logrus.FieldLogger, api, meanwhile string) func(resting bool) {
	return func(resting bool) {
		if resting {
			log.Warnf("%s failed %d times in a row: it is left alone and tried again after %s, so that no container waits for it; %s",
				api, breaker.Failures, breaker.DefaultRest, meanwhile)
			return
		}
		log.Infof("%s answers again", api)
	}
}

// breakerOpen tells, when it is asked for, whether an API is left alone.
func breakerOpen(api string, resting func() bool) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "nri_rdma", Name: "breaker_open", ConstLabels: prometheus.Labels{"api": api},
		Help: "1 while an API is left alone because it failed three times in a row.",
	}, func() float64 {
		if resting() {
			return 1
		}
		return 0
	})
}
