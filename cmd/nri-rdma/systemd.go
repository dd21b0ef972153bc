// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/plugin"
)

// notifySystemd reports the service as ready and notifies the watchdog, if systemd started the program. The service is
// ready before the plugin is registered, since the runtime can start later than the service.
func notifySystemd(ctx context.Context, p *plugin.Plugin, log logrus.FieldLogger) {
	notified, err := daemon.SdNotify(false, daemon.SdNotifyReady)
	if err != nil {
		log.WithError(err).Warn("cannot notify systemd that the service is ready")
	}
	every, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.WithError(err).Warn("cannot read systemd's watchdog settings: the default interval applies")
	}
	if !notified {
		return
	}
	tick := time.NewTicker(cmp.Or(every, time.Minute) / 3)
	defer tick.Stop()
	for {
		state := "STATUS=waiting for the runtime"
		if p.Registered() {
			state = "STATUS=registered with the runtime"
		} else if instead, err := p.Ready(); err == nil {
			state = "STATUS=" + instead
		}
		if err := p.Alive(); err != nil {
			log.WithError(err).Error("the plugin does not respond: systemd's watchdog is not notified")
			state = "STATUS=" + err.Error()
		} else {
			state += "\n" + daemon.SdNotifyWatchdog
		}
		_, _ = daemon.SdNotify(false, state) // the socket worked before
		select {
		case <-tick.C:
		case <-ctx.Done():
			_, _ = daemon.SdNotify(false, daemon.SdNotifyStopping) // the socket worked before
			return
		}
	}
}
