// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"

	"github.com/sirupsen/logrus"
)

// stubLog hands NRI's own messages to the log at debug level: what an administrator needs to know, the plugin says itself.
type stubLog struct{ logrus.FieldLogger }

func (l stubLog) Debugf(_ context.Context, format string, args ...any) {
	l.FieldLogger.Debugf(format, args...)
}

func (l stubLog) Infof(_ context.Context, format string, args ...any) {
	l.FieldLogger.Debugf(format, args...)
}

func (l stubLog) Warnf(_ context.Context, format string, args ...any) {
	l.FieldLogger.Debugf(format, args...)
}

func (l stubLog) Errorf(_ context.Context, format string, args ...any) {
	l.FieldLogger.Debugf(format, args...)
}
