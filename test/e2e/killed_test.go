// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/daemon"
)

// kills is enough to kill a plugin before, during, and after a request: the load starts more than two containers per
// second. The tests in test/nri kill more often.
const kills = 5

// death contains when a plugin was killed, and when the next one was registered or the load ended.
type death struct{ killed, replaced time.Time }

// If a plugin is killed, at whatever moment, no container fails. Containers that started without the plugin are
// reported and raised when it is back.
func TestPluginKilled(t *testing.T) {
	l := startLoad(t, runPod(t, containerd.Pod{}), 2, "")
	killPlugins(t, l)
	low := l.low()
	t.Logf("%d kills, %d containers started, %d of them without the plugin", kills, len(l.started), len(low))
	if len(low) == 0 || len(low) == len(l.started) {
		t.Error("no container met a plugin, or none met none: this tests nothing")
	}
	expectListedAndRepaired(t, low)
}

// If pods require the plugin, their containers do not start without it once the runtime has noticed that the plugin is
// gone, and has refused one container. If the plugin was killed during a container's creation, the runtime treats the
// container as adjusted; such containers are reported and raised.
func TestPluginKilledUnderPodsThatInsist(t *testing.T) {
	restartWith(t, func(o *containerd.Options) { o.Validator = true })
	pod := runPod(t, containerd.Pod{Annotations: map[string]string{"required-plugins.noderesource.dev": `["rdma"]`}})
	l := startLoad(t, pod, 2, `required plugin "rdma" not present`)
	deaths := killPlugins(t, l)
	low := l.low()
	t.Logf("%d kills, %d containers started, %d refused, %d started without the plugin since it died over them",
		kills, len(l.started), len(l.refused), len(low))
	l.expectBoth()
	for _, c := range low {
		if !inFlight(c, deaths, l.refused) {
			t.Errorf("container %s, created from %s to %s, was started without the plugin, and it was in flight at no death: %v",
				c.name, c.began, c.ran, deaths)
		}
	}
	expectListedAndRepaired(t, low)
}

// inFlight reports whether the runtime may not have noticed a death when a creation began, if the creation ended after
// the death. A refused creation that began after the death proves that the runtime has noticed it.
func inFlight(c creation, deaths []death, refused []creation) bool {
	return slices.ContainsFunc(deaths, func(d death) bool {
		return c.ran.After(d.killed) && c.began.Before(d.replaced) && !slices.ContainsFunc(refused, func(r creation) bool {
			return r.began.After(d.killed) && r.ran.Before(c.began)
		})
	})
}

// With a validator next to the plugin, no RDMA container starts without its limit, even if the plugin was killed during
// its creation. The pods need no setting for that. Containers without RDMA are created all the time.
func TestPluginKilledBesideAValidator(t *testing.T) {
	startPlugin(t, "ipcLock: false", "--validate")
	l := startLoad(t, runPod(t, containerd.Pod{}), 2, "would start without memlock unlimited")
	killPlugins(t, l)
	t.Logf("%d kills, %d containers started, %d refused", kills, len(l.started), len(l.refused))
	l.expectBoth()
	for _, c := range l.low() {
		t.Errorf("container %s was started with a memlock of %s", c.name, c.memlock)
	}
}

// killPlugins kills one plugin after the other, each one later after its registration, and then stops the load. Every
// other time, there is no plugin for a while.
func killPlugins(t *testing.T, l *load) []death {
	t.Helper()
	const config = "ipcLock: false"
	var deaths []death
	gone := strings.Count(ctrd.Log(), `connection to plugin \"90-rdma\" closed`)
	for i := range kills {
		plugin := startPlugin(t, config)
		if i > 0 {
			deaths[i-1].replaced = time.Now()
		}
		if i == 0 {
			l.awaitTries() // some of these creations reach a plugin
		}
		moment := time.NewTimer(time.Duration(i) * 2 * time.Second / kills)
		<-moment.C
		d := death{killed: time.Now()}
		signal(t, plugin, syscall.SIGKILL)
		<-plugin.Exited()
		gone++
		awaitThat(t, ctrd, patience, "notices that the plugin is gone",
			func() bool { return strings.Count(ctrd.Log(), `connection to plugin \"90-rdma\" closed`) >= gone })
		if i%2 == 1 {
			l.awaitTries() // some of these creations begin while there is no plugin
		}
		deaths = append(deaths, d)
	}
	l.stop()
	deaths[kills-1].replaced = time.Now()
	return deaths
}

// expectListedAndRepaired starts a plugin, which must count the containers below policy when it registers, and repair
// --every, which must raise them.
func expectListedAndRepaired(t *testing.T, low []creation) {
	t.Helper()
	expectBelow(t, startReporter(t), len(low), len(low))
	loop := startRepair(t)
	for _, c := range low {
		awaitThat(t, loop, patience, "raises the limit of "+c.name,
			func() bool { return memlock(t, c.id) == "unlimited" })
	}
}

// slowly is the interval between two looks at all containers, because a look takes more CPU time on the node than what
// it waits for.
const slowly = 500 * time.Millisecond

// startReporter starts a plugin that serves metrics.
func startReporter(t *testing.T) *daemon.Process {
	t.Helper()
	return startPlugin(t, "ipcLock: false", "--http", metricsAddress)
}

// startRepair starts repair --every.
func startRepair(t *testing.T) *daemon.Process {
	t.Helper()
	return start(t, filepath.Join(*bin, "rdma-spec"), "repair", "--every", "1s")
}

// expectBelow waits until the plugin logs how many containers were below policy when it registered.
func expectBelow(t *testing.T, plugin *daemon.Process, least, most int) {
	t.Helper()
	gauge := regexp.MustCompile(`(?m)^nri_rdma_registered_below_policy (\d+)$`)
	said := ""
	err := daemon.Await(within(t, patience), slowly, "counts the containers below policy", func() bool {
		text, err := metrics()
		said = text
		found := gauge.FindStringSubmatch(text)
		if err != nil || found == nil {
			return false
		}
		below, err := strconv.Atoi(found[1])
		return err == nil && least <= below && below <= most
	}, plugin)
	if err != nil {
		t.Errorf("%v; want %d to %d of\n%s", err, least, most, said)
	}
}
