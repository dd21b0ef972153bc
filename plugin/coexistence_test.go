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

	"github.com/rdma-spec/rdma-spec/plugin/nritest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
)

// otherPlugin sets memlock and injects a device, as others of the field do.
type otherPlugin struct {
	device  *api.LinuxDevice
	memlock uint64
}

// CreateContainer is called by the runtime.
func (o otherPlugin) CreateContainer(context.Context, *api.PodSandbox, *api.Container) (*api.ContainerAdjustment,
	[]*api.ContainerUpdate, error) {
	adjustment := &api.ContainerAdjustment{}
	adjustment.AddRlimit("RLIMIT_MEMLOCK", o.memlock, o.memlock)
	adjustment.AddDevice(o.device)
	return adjustment, nil, nil
}

// With another plugin before this one, what that has set is left alone where it suffices. Where it does not, and with
// another plugin after this one, the runtime refuses the container and names both: NRI lets only one plugin set a
// limit.
func TestOtherPluginsOfTheNode(t *testing.T) {
	const both = "both tried to set"
	for _, test := range []struct {
		index   string
		memlock uint64
		want    string
	}{{"10", math.MaxUint64, ""}, {"10", 1 << 30, both}, {"95", math.MaxUint64, both}} {
		t.Run(fmt.Sprintf("index %s, memlock %d", test.index, test.memlock), func(t *testing.T) {
			runtime := nritest.New(t, "containerd", "v2.4.2")
			runtime.Start(t)
			root := hcatest.V100(t)
			run(t, Options{Socket: runtime.Socket, Inventory: inventoryOf(t, root),
				Policy: mustPolicy(t, "inject: {namespaces: [ml]}")})
			verbs := verbsContainer(t, root).GetLinux().GetDevices()[0]
			startOther(t, runtime, test.index, otherPlugin{verbs, test.memlock})
			await.That(t, await.Patience, "both registered", func() bool { return runtime.Synchronised() == 2 })
			asking := &api.PodSandbox{Id: "sandbox", Name: "train-0", Namespace: "ml",
				Annotations: map[string]string{policy.AnnotationKey: "true"}}
			got, err := runtime.Create(t.Context(), asking, &api.Container{Id: "container", Name: "main"})
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "90-rdma") ||
					!strings.Contains(err.Error(), test.index+"-other") {
					t.Errorf("the creation gives %v, want %q and the names of both", err, test.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
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

// startOther registers a plugin of another make with a runtime; it ends with the test.
func startOther(t *testing.T, runtime *nritest.Runtime, index string, plugin any) {
	t.Helper()
	other, err := stub.New(plugin, stub.WithPluginName("other"), stub.WithPluginIdx(index),
		stub.WithSocketPath(runtime.Socket))
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Stop)
}
