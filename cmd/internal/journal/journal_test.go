// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"fmt"
	"slices"
	"testing"

	"github.com/coreos/go-systemd/v22/journal"
	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"
)

// What a program logs arrives in the journal with its priority, in either format.
func TestJournal(t *testing.T) {
	for _, formatter := range []logrus.Formatter{&logrus.TextFormatter{DisableColors: true}, &logrus.JSONFormatter{}} {
		var got []string
		log := logrus.New()
		log.SetFormatter(formatter)
		log.SetLevel(logrus.DebugLevel)
		send := func(message string, priority journal.Priority, fields map[string]string) error {
			got = append(got, fmt.Sprintf("%d %s %t", priority, fields["SYSLOG_IDENTIFIER"],
				slices.Contains([]byte(message), '\n')))
			return nil
		}
		log.SetOutput(Log{"nri-rdma", send})
		log.Debug("a")
		log.Info("b")
		log.WithField("line", "level=error").Warn("c")
		log.Error("d")
		if err := (Log{"rdma-hook", send}).Error("level=info e"); err != nil {
			t.Error(err)
		}
		want := []string{"7 nri-rdma false", "6 nri-rdma false", "4 nri-rdma false", "3 nri-rdma false", "3 rdma-hook false"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%T (-want +got):\n%s", formatter, diff)
		}
	}
}
