// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
)

// inventoryOf makes an inventory of the node at root for decisions by a configuration, and the facts of these.
func inventoryOf(t *testing.T, root, config string) (*Inventory, *policy.Policy, policy.Facts) {
	t.Helper()
	log, _ := logtest.NewNullLogger()
	i := New(root, log)
	p, err := policy.FromText([]byte(config))
	must.Succeed(t, err)
	i.Want(p.Wants())
	readAgain := func() { // as Run does, but nothing else that it does
		for {
			select {
			case <-i.requests:
				i.readAll()
			case <-t.Context().Done():
				return
			}
		}
	}
	begin := sync.OnceFunc(func() { go readAgain() })
	facts := policy.Facts{Verbs: i.Verbs,
		HCAs:      func() (*hca.Inventory, bool, error) { return i.HCAs(t.Context()) },
		ReadAgain: func() (*hca.Inventory, bool, error) { begin(); return i.ReadAgain(t.Context()) },
	}
	return i, p, facts
}

// asking is a container whose author asks for HCAs.
func asking(value string) policy.Container {
	return policy.Container{Namespace: "ml", Name: "c", Annotations: map[string]string{policy.AnnotationKey: value}}
}

// TestWant_readsOnlyWanted: of a node with virtual functions, an inventory reads what the configuration can give, and the
// ports of physical functions.
func TestWant_readsOnlyWanted(t *testing.T) {
	for name, test := range map[string]struct{ config, want string }{
		"defaults":            {"{}", "mlx5_0 {}, mlx5_17 {}"},
		"an open namespace":   {"inject: {namespaces: [ml]}", "mlx5_0 {D}, mlx5_17 {D}"},
		"one HCA":             {"inject: {namespaces: [ml], names: [mlx5_0]}", "mlx5_0 {D}, mlx5_17 {}"},
		"netdevs":             {"inject: {namespaces: [ml], names: [mlx5_0], netdevs: [e*]}", "mlx5_0 {DN}, mlx5_17 {}"},
		"virtual functions":   {"inject: {namespaces: [ml], names: [mlx5_1], functions: [virtual]}", "mlx5_0 {}, mlx5_1 {D}, mlx5_17 {}"},
		"a rule without asks": {"rules: [{match: {namespaces: [a]}, inject: {names: [mlx5_0]}}]", "mlx5_0 {}, mlx5_17 {}"},
		"management, unasked": {"rules: [{match: {namespaces: [a]}, inject: {always: true, management: true, names: [mlx5_0]}}]",
			"mlx5_0 {DM}, mlx5_17 {}"},
	} {
		t.Run(name, func(t *testing.T) {
			i, _, _ := inventoryOf(t, hcatest.VirtualFunctions(2, 16, 0).Root(t), test.config)
			reads := make(chan string, 100)
			read := i.read
			i.read = func(h hca.HCA, parts hca.Parts) hca.HCA {
				r := h.Name + " {"
				for i, asked := range []bool{parts.Devices, parts.Management, parts.Netdevs} {
					if asked {
						r += "DMN"[i : i+1]
					}
				}
				reads <- r + "}"
				return read(h, parts)
			}
			i.readAll()
			close(reads)
			var got []string
			for r := range reads {
				got = append(got, r)
			}
			slices.Sort(got)
			if got := strings.Join(got, ", "); got != test.want {
				t.Errorf("read %s, want %s", got, test.want)
			}
			node, _, err := i.HCAs(t.Context())
			if err != nil || len(node.HCAs) != 34 || node.HCAs[2].Function != hca.FunctionVirtual || node.HCAs[2].Unread == "" {
				t.Errorf("%+v, error %v", node, err)
			}
		})
	}
}

// TestHCAs_waitsForWantedOnly: the first inventory does not wait for HCAs that no decision depends on, and another policy
// is not decided about by what was read for the one before.
func TestHCAs_waitsForWantedOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i, f, _ := newFakeInventory(t, "mlx5_0", "mlx5_1")
		f.sick["mlx5_0"] = make(chan struct{})
		i.Want(func(h *hca.HCA) bool { return h.Name == "mlx5_1" }, hca.Parts{})
		began := time.Now()
		go i.readAll()
		node, _, err := i.HCAs(t.Context())
		if err != nil || time.Since(began) != 0 || !node.HCAs[1].Active() {
			t.Errorf("%+v, error %v after %s", node, err, time.Since(began))
		}
		time.Sleep(time.Second)
		i.Want(wantAll, hca.Parts{})
		ended, end := context.WithCancel(t.Context())
		end()
		if node, _, err := i.HCAs(ended); err == nil {
			t.Errorf("another policy has %+v, which was read before it", node)
		}
		follow(t, i, f)
		if node, _, err := i.HCAs(t.Context()); err != nil || node.HCAs[0].Unread == "" || !node.HCAs[1].Active() {
			t.Errorf("%+v, error %v", node, err)
		}
		if got := f.count("mlx5_0"); got != 1 {
			t.Errorf("the sick one was asked %d times", got)
		}
	})
}

// TestInventory_changedNumbers: after a driver came back in another order, nobody gets an HCA under the name of another, and the
// node is read again at once where that is possible.
func TestInventory_changedNumbers(t *testing.T) {
	two := func(names ...string) hcatest.Files {
		pci := map[string]string{"compute0": "0000:10:00.0", "storage0": "0000:20:00.0"}
		var n hcatest.Node
		for _, name := range names {
			n.HCAs = append(n.HCAs, hcatest.HCA{Name: name, PCI: pci[name], Driver: "mlx5_core", Ports: []hcatest.Port{{}}})
		}
		return n.Files().With(hcatest.Files{"dev/infiniband/": ""})
	}
	soft := func(names ...string) hcatest.Files {
		var n hcatest.Node
		for _, name := range names {
			n.HCAs = append(n.HCAs, hcatest.HCA{Name: name, Ports: []hcatest.Port{{}}})
		}
		return n.Files().With(hcatest.Files{"dev/infiniband/": ""})
	}
	for name, test := range map[string]struct {
		node      func(names ...string) hcatest.Files
		ask       string
		readAgain bool
		number    uint32 // that the container gets; 0: it is refused
		silent    bool   // it has been read again, and compute0 did not answer
	}{
		"all":                {two, "true", true, 193, false},
		"by name":            {two, "{devices: [compute0]}", true, 193, false},
		"no time":            {two, "true", false, 0, false},
		"no time, by name":   {two, "{devices: [compute0]}", false, 0, false},
		"soft HCAs":          {soft, "true", true, 193, false},
		"soft HCAs, no time": {soft, "true", false, 0, false},
		"silent":             {two, "true", true, 0, true},
		"silent, by name":    {two, "{devices: [compute0]}", true, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			root := test.node("compute0", "storage0").Root(t)
			dir, long := filepath.Join(root, "dev/infiniband"), time.Now().Add(-time.Hour)
			must.Succeed(t, os.Chtimes(dir, long, long))
			i, p, facts := inventoryOf(t, root, "inject: {namespaces: [ml], names: [compute*]}")
			if !test.readAgain {
				facts.ReadAgain = func() (*hca.Inventory, bool, error) { return nil, false, errNotRead }
			}
			i.readAll()
			if d := p.Decide(asking(test.ask), facts); d.Refusal != nil || d.Grant.Devices[0].Minor != 192 {
				t.Fatalf("before: %+v", d)
			}
			replaceSys(t, root, test.node("storage0", "compute0"))
			numbers, err := hca.OpenNumbers(root) // the kernel's directory stays the same
			must.Succeed(t, err)
			i.numbers.Store(&proof{numbers, nil})
			must.Succeed(t, os.Chtimes(dir, time.Now(), time.Now()))
			if read := i.read; test.silent {
				i.read = func(h hca.HCA, parts hca.Parts) hca.HCA {
					if h.Name == "compute0" {
						<-t.Context().Done()
					}
					return read(h, parts)
				}
				i.readAll()
			}
			var d policy.Decision
			await.That(t, await.Timeout, "it is as it stays", func() bool {
				d = p.Decide(asking(test.ask), facts)
				return d.Refusal == nil || test.number == 0 // on a busy machine no HCA may answer in time, either
			})
			switch {
			case test.number == 0 && (d.Refusal == nil || d.Refusal.Cause != policy.CauseHCA):
				t.Errorf("not refused: %+v", d.Grant)
			case test.number > 0 && (d.Grant == nil || d.Grant.Devices[0].Minor != test.number):
				t.Errorf("%+v, refusal %v", d.Grant, d.Refusal)
			}
		})
	}
}

// replaceSys has a node have the sysfs of another.
func replaceSys(t *testing.T, root string, other hcatest.Files) {
	t.Helper()
	must.Succeed(t, os.Rename(root+"/sys", root+"/old"), os.Rename(other.Root(t)+"/sys", root+"/sys"))
}

// TestInventory_managementDevices: a container gets the devices for management of an HCA, and not those of its virtual functions,
// and where they cannot be listed it is refused.
func TestInventory_managementDevices(t *testing.T) {
	const config = "optIn: {namespaces: [ml]}\n" +
		"rules: [{match: {namespaces: [ml]}, inject: {always: true, management: true, names: [mlx5_0]}}]"
	i, p, facts := inventoryOf(t, hcatest.VirtualFunctions(1, 16, 0).Root(t), config)
	i.readAll()
	if d := p.Decide(asking("true"), facts); d.Grant == nil || len(d.Grant.Devices) != 4 {
		t.Errorf("%+v, refusal %v", d.Grant, d.Refusal)
	}
	root := hcatest.V100Node().Files()
	mad := "sys/devices/pci0000:5e/0000:5e:00.0/infiniband_mad"
	i, p, facts = inventoryOf(t, root.Without(mad).With(hcatest.Files{mad: "no directory"}).Root(t), config)
	i.readAll()
	for _, value := range []string{"true", "{devices: [mlx5_0]}"} {
		if d := p.Decide(asking(value), facts); d.Refusal == nil || d.Refusal.Cause != policy.CauseHCA {
			t.Errorf("%s: %+v", value, d.Grant)
		}
	}
}

// TestCollect_portsOfVirtualFunctions: the port of a virtual function, which goes down when its pod ends, has no metric.
func TestCollect_portsOfVirtualFunctions(t *testing.T) {
	i, _, _ := inventoryOf(t, hcatest.VirtualNode().Files().Root(t), "inject: {namespaces: [ml], functions: [physical, virtual]}")
	i.readAll()
	const want = `# HELP nri_rdma_hca_port_active 1 if the port of the HCA was ACTIVE when the HCA last responded.
# TYPE nri_rdma_hca_port_active gauge
nri_rdma_hca_port_active{hca="mlx5_0",link_layer="Ethernet",port="1"} 1
`
	if err := testutil.CollectAndCompare(i, strings.NewReader(want), "nri_rdma_hca_port_active"); err != nil {
		t.Error(err)
	}
}

// TestVerbs_unreadHCA: a verbs device has the name of the HCA at its place, also of one that is not read.
func TestVerbs_unreadHCA(t *testing.T) {
	i, p, facts := inventoryOf(t, hcatest.VirtualFunctions(1, 40, 0).Root(t), "optIn: {namespaces: [ml]}")
	i.readAll()
	const minor = hcatest.FirstVerbs + 7
	c := asking("{devices: [mlx5_7]}")
	c.Devices = []policy.Device{{Path: "/dev/infiniband/uverbs0", Type: "c", Major: hcatest.Major, Minor: minor}}
	dev, ok, err := i.Verbs(hca.Number{Major: hcatest.Major, Minor: minor})
	if !ok || err != nil || dev.HCA != "mlx5_7" {
		t.Errorf("%+v, %v, error %v", dev, ok, err)
	}
	if d := p.Decide(c, facts); d.Refusal != nil || d.Grant == nil {
		t.Errorf("refusal %v", d.Refusal)
	}
	c.Annotations[policy.AnnotationKey] = "{devices: [mlx5_8]}"
	if d := p.Decide(c, facts); d.Refusal == nil || d.Refusal.Cause != policy.CauseCeiling {
		t.Errorf("an HCA that it does not hold: %+v", d)
	}
}
