// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"math"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/rdma-spec/rdma-spec/plugin/nritest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/chance"
)

// slowKubelet says, in the environment, how long a plugin's kubelet takes to answer.
const slowKubelet = "NRI_RDMA_TEST_KUBELET"

// lateKubelet says on standard output that it was asked, and answers later that the container holds a resource.
type lateKubelet struct{ takes time.Duration }

func (k lateKubelet) Names(context.Context, string, string, string, string) (names []string, known bool, err error) {
	fmt.Println("asked")
	time.Sleep(k.takes)
	return []string{"rdma/hca"}, true, nil
}

func (k lateKubelet) PodHolds(context.Context, string, string, string) (names []string, claims bool, err error) {
	return nil, false, nil
}

// askSlowKubelet has a plugin's decisions wait for the kubelet, where the environment says so.
func askSlowKubelet(o *Options) {
	takes, err := time.ParseDuration(os.Getenv(slowKubelet))
	if err != nil {
		return
	}
	if o.Policy, err = policy.FromText([]byte("optIn: {resources: [rdma/*]}\n")); err != nil {
		panic(err)
	}
	o.Resources = lateKubelet{takes}
}

// A plugin that gets SIGTERM while it works on a request answers it, the runtime has the answer, and the process ends
// well.
func TestSIGTERMDuringASlowRequest(t *testing.T) {
	const ends = 40 // each takes a tenth of a second, or a whole one under the race detector
	nri, random, root := nritest.New(t, "containerd", "v2.4.2"), chance.New(t), hcatest.V100(t)
	nri.Start(t)
	for i := range ends {
		asked, says, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		takes := time.Millisecond + time.Duration(random.Int64N(int64(5*time.Millisecond)))
		plugin := startProcess(t, nri, root, says, slowKubelet+"="+takes.String())
		await.That(t, await.Patience, "registered", func() bool { return nri.Synchronised() == i+1 })
		type answer struct {
			*api.ContainerAdjustment
			error
		}
		answers := make(chan answer, 1)
		go func() {
			got, err := nri.Create(t.Context(), pod, &api.Container{Id: "container", Name: "main"})
			answers <- answer{got, err}
		}()
		if _, err := asked.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if err := plugin.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		got := await.Receive(t, await.Patience, "the runtime's answer", answers)
		if limits := got.GetRlimits(); got.error != nil || len(limits) != 1 || limits[0].GetSoft() != math.MaxUint64 {
			t.Fatalf("end %d: %v, %v: want memlock unlimited", i, limits, got.error)
		}
		if err := plugin.Wait(); err != nil {
			t.Fatalf("end %d: %v", i, err)
		}
		_, _ = asked.Close(), says.Close() // nothing is lost with them
	}
}
