// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"

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
		Address: o.containerd, Root: o.root, Namespace: o.namespace, Budget: o.budget, OnRest: func(resting bool) { sayRest(log, resting) },
	})
}

// sayRest tells when containerd is left alone because it does not answer, and when it has answered again.
func sayRest(log logrus.FieldLogger, resting bool) {
	if resting {
		log.Warnf("containerd's API failed three times in a row: it is left alone and tried again after %s, so that no container waits for it; "+
			"RDMA containers get no CAP_IPC_LOCK until it answers", storedspec.DefaultRest)
		return
	}
	log.Info("containerd's API answers again: RDMA containers get CAP_IPC_LOCK")
}

// breakerOpen tells, when it is asked for, whether containerd's API is left alone.
func breakerOpen(c *storedspec.Client) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "nri_rdma", Name: "breaker_open", ConstLabels: prometheus.Labels{"api": "containerd"},
		Help: "1 while an API is left alone because it failed three times in a row.",
	}, func() float64 {
		if c.Stats().Resting {
			return 1
		}
		return 0
	})
}
