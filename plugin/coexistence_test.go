// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/rdma-spec/rdma-spec/plugin/nritest"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
)

// another is a plugin of another make. It gives each container what is set.
type another struct {
	device  *api.LinuxDevice
	cdi     string // the name of a device
	memlock uint64
}

// CreateContainer is called by the runtime.
func (a another) CreateContainer(context.Context, *api.PodSandbox, *api.Container) (*api.ContainerAdjustment,
	[]*api.ContainerUpdate, error) {
	adjustment := &api.ContainerAdjustment{}
	if a.device != nil {
		adjustment.AddDevice(a.device)
	}
	if a.cdi != "" {
		adjustment.AddCDIDevice(&api.CDIDevice{Name: a.cdi})
	}
	if a.memlock != 0 {
		adjustment.AddRlimit(spec.RlimitMemlock, a.memlock, a.memlock)
	}
	return adjustment, nil, nil
}

// start registers it with a runtime, at an index; it ends with the test.
func (a another) start(t *testing.T, runtime *nritest.Runtime, index string) {
	t.Helper()
	before := runtime.Synchronised()
	other, err := stub.New(a, stub.WithPluginName("other"), stub.WithPluginIdx(index), stub.WithSocketPath(runtime.Socket))
	if err == nil {
		err = other.Start(t.Context())
	}
	must.Succeed(t, err)
	t.Cleanup(other.Stop)
	await.That(t, await.Timeout, "registered", func() bool { return runtime.Synchronised() > before })
}

// With another plugin before this one, what that has set is left alone where it suffices. Where it does not, and with
// another plugin after this one, the runtime refuses the container and names both: NRI lets only one plugin set a
// limit.
func TestCreateContainer_otherPlugins(t *testing.T) {
	const both = "both tried to set"
	for _, test := range []struct {
		index   string
		memlock uint64
		want    string
	}{{"10", math.MaxUint64, ""}, {"10", 1 << 30, both}, {"95", math.MaxUint64, both}} {
		t.Run(fmt.Sprintf("index %s, memlock %d", test.index, test.memlock), func(t *testing.T) {
			runtime, p := registered(t, Options{Policy: mustPolicy(t, "inject: {namespaces: [ml]}")})
			verbs := verbsContainer(t, p.root).GetLinux().GetDevices()[0]
			another{device: verbs, memlock: test.memlock}.start(t, runtime, test.index)
			got, err := runtime.Create(t.Context(), podIn("ml", "true"), &api.Container{Id: "container", Name: "main"})
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "90-rdma") ||
					!strings.Contains(err.Error(), test.index+"-other") {
					t.Errorf("the creation gives %v, want %q and the names of both", err, test.want)
				}
				return
			}
			must.Succeed(t, err)
			if n := len(got.GetRlimits()); n != 1 {
				t.Errorf("%d rlimits are set, want one", n)
			}
			paths := map[string]int{}
			for _, d := range got.GetLinux().GetDevices() {
				paths[d.GetPath()]++
			}
			if paths[verbs.GetPath()] != 1 {
				t.Errorf("devices %v, want %s once", paths, verbs.GetPath())
			}
		})
	}
}

// A device that the pod's author names through another plugin counts where his annotation would; elsewhere the
// container starts as it is, also where the device comes by CDI, after this plugin has answered.
func TestCreateContainer_authorsDevice(t *testing.T) {
	for namespace, want := range map[string]int{"guests": 0, "ml": 1} {
		t.Run(namespace, func(t *testing.T) {
			runtime, p := registered(t, Options{Policy: mustPolicy(t, "optIn: {namespaces: [ml]}")})
			verbs := verbsContainer(t, p.root).GetLinux().GetDevices()[0]
			another{device: verbs}.start(t, runtime, "10")
			pod := &api.PodSandbox{Id: "s", Name: "anybody", Namespace: namespace,
				Annotations: map[string]string{"devices.gke.io/container.main": "- path: " + verbs.GetPath()}}
			got, err := runtime.Create(t.Context(), pod, &api.Container{Id: "container", Name: "main"})
			must.Succeed(t, err)
			if n := len(got.GetRlimits()); n != want {
				t.Errorf("%d rlimits are set, want %d", n, want)
			}
			if n := testutil.ToFloat64(p.metrics.authored); int(n) != 1-want {
				t.Errorf("%v containers are counted, want %d", n, 1-want)
			}
			if n := strings.Count(p.log.String(), "left alone: "); n != 1-want {
				t.Errorf("%d lines say that it is left alone, want %d:\n%s", n, 1-want, p.log)
			}
		})
	}
}
