// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/passes"
)

const (
	everyLeast = time.Second
	everyMost  = 24 * time.Hour
)

// checkLoop returns an error for flags that cannot be combined.
func (o Options) checkLoop(every bool) error {
	switch {
	case every && (o.Every < everyLeast || o.Every > everyMost):
		return fmt.Errorf("--every %s is out of range: specify a duration from %s to %s, such as 1m",
			o.Every, everyLeast, everyMost)
	case !every && o.Address != "":
		return errors.New("--http requires --every")
	case every && o.Format != cli.FormatText:
		return fmt.Errorf("--every supports only text output, not %s", o.Format)
	}
	return nil
}

// Loop makes passes until the context is done.
func (o Options) Loop(ctx context.Context, stdout, stderr io.Writer) error {
	l := newLoop(o, stdout, stderr)
	return passes.Passes{Every: o.Every, Address: o.Address, Look: l.pass, Stderr: stderr}.Run(ctx)
}

// loop is the state that passes share.
type loop struct {
	Options
	stdout, stderr io.Writer
	said           map[string]bool // the lines of the last pass

	registry   *prometheus.Registry
	containers *prometheus.GaugeVec
	unknown    prometheus.Gauge
	raised     *prometheus.CounterVec
	lastPass   prometheus.Gauge
}

func newLoop(o Options, stdout, stderr io.Writer) *loop {
	gauge := func(name, help string) prometheus.GaugeOpts {
		return prometheus.GaugeOpts{Namespace: "rdma_spec_repair", Name: name, Help: help}
	}
	l := &loop{
		Options: o, stdout: stdout, stderr: stderr, registry: prometheus.NewRegistry(),
		containers: prometheus.NewGaugeVec(gauge("containers",
			"Number of running RDMA containers after the last pass, by memlock "+
				"(sufficient, or below the limit that the policy grants)."), []string{"memlock"}),
		unknown: prometheus.NewGauge(gauge("unknown_containers",
			"Number of containers that could not be examined in the last pass.")),
		raised: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "rdma_spec_repair", Name: "total",
			Help: "Number of attempts to raise the memlock of a running container, by result (raised, failed)."},
			[]string{"result"}),
		lastPass: prometheus.NewGauge(gauge("last_pass_timestamp_seconds", "Time when the last pass ended.")),
	}
	for _, result := range []string{"raised", "failed"} { // so that the first attempt increases an existing counter
		l.raised.WithLabelValues(result)
	}
	l.registry.MustRegister(l.containers, l.unknown, l.raised, l.lastPass)
	return l
}

// pass makes a pass, prints the news, and writes the metrics.
func (l *loop) pass(ctx context.Context, metrics io.Writer) error {
	result, found, err := l.Options.pass(ctx)
	if err != nil {
		return err
	}
	if err := l.writeNews(result, found); err != nil {
		return err
	}
	l.count(result, found)
	families, err := l.registry.Gather()
	for _, family := range families {
		if err == nil {
			_, err = expfmt.MetricFamilyToText(metrics, family)
		}
	}
	return err
}

// writeNews writes the lines that the previous pass did not write. It omits the line "nothing to raise".
func (l *loop) writeNews(result Result, found node.Containers) error {
	var out, notes bytes.Buffer
	if len(result.Containers) > 0 {
		if err := result.write(&out, &notes); err != nil {
			return err
		}
	}
	cli.WriteNotes(&notes, append(found.Sources(), result.Notes...))
	said := map[string]bool{}
	write := func(w io.Writer, text string) (err error) {
		for line := range strings.Lines(text) {
			said[line] = true
			if !l.said[line] && err == nil {
				_, err = io.WriteString(w, line)
			}
		}
		return err
	}
	err := errors.Join(write(l.stdout, out.String()), write(l.stderr, notes.String()))
	l.said = said
	return err
}

func (l *loop) count(result Result, found node.Containers) {
	below := result.left
	for _, c := range result.Containers {
		switch {
		case result.DryRun:
			below++
		case len(c.Errors) > 0:
			below++
			l.raised.WithLabelValues("failed").Inc()
		default:
			l.raised.WithLabelValues("raised").Inc()
		}
	}
	l.containers.WithLabelValues("below").Set(float64(below))
	l.containers.WithLabelValues("sufficient").Set(float64(result.LookedAt - below))
	l.unknown.Set(float64(found.Failed))
	l.lastPass.SetToCurrentTime()
}
