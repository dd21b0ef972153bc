// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

func equal(a, b netip.Addr) bool { return a == b }

func equalPrefix(a, b netip.Prefix) bool { return a == b }

// A pod with two rails, both of which Multus made: what /proc has of its network namespace.
var rails = hcatest.Files{
	"proc/7/net/dev": "Inter-|   Receive  |\n face |bytes |\n    lo: 1 2\n  eth0: 3 4\n  net1: 3 4\n  net2: 3 4\n  net3: 3 4\n",
	"proc/7/net/if_inet6": "00000000000000000000000000000001 01 80 10 80       lo\n" +
		"fe80000000000000005056fffe000001 03 40 20 80     net1\n",
	"proc/7/net/ipv6_route": ipv6Route("fd000001000000000000000000000000", "40", noAddress, "net1") +
		ipv6Route(noAddress, "00", "fe800000000000000000000000000001", "net1") +
		ipv6Route("fe800000000000000000000000000000", "40", noAddress, "net2") +
		ipv6Route(noAddress, "00", "fe800000000000000000000000000001", "net3") +
		ipv6Route("fd000001000000000000000000000007", "80", noAddress, "lo") +
		ipv6Route("ff000000000000000000000000000000", "08", noAddress, "net2") +
		ipv6Route(noAddress, "00", noAddress, "lo") + "garbage\n",
	"proc/7/net/fib_trie": "Main:\n  +-- 0.0.0.0/0 3 0 5\nLocal:\n     |-- 10.0.1.7\n        /32 host LOCAL\n" +
		"     |-- 10.0.2.7\n        /32 host LOCAL\n     |-- 127.0.0.1\n        /32 host LOCAL\nId 102:\n  +-- 0.0.0.0/0\n",
	"proc/7/net/route": "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n" +
		"eth0\t00000000\t0100F40A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n" +
		"net1\t0001000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n" +
		"net2\t0002000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n" +
		"net2\t0000100A\t0102000A\t0003\t0\t0\t0\t0000FFFF\t0\t0\t0\n" +
		"gone\t0000100A\t0102000A\t0003\t0\t0\t0\t0000FFFF\t0\t0\t0\n",
}

const noAddress = "00000000000000000000000000000000"

// ipv6Route is a line of ipv6_route.
func ipv6Route(to, length, by, name string) string {
	return fmt.Sprintf("%s %s %s 00 %s 00000100 00000001 00000000 00000001 %8s\n", to, length, noAddress, by, name)
}

func TestReadNetwork(t *testing.T) {
	var got Inside
	if err := got.readNetwork(rails.Root(t), Process{PID: 7}); err != nil {
		t.Fatal(err)
	}
	local := netip.MustParseAddr("fe80::50:56ff:fe00:1")
	want := Inside{
		Addresses:     []netip.Addr{netip.MustParseAddr("10.0.1.7"), netip.MustParseAddr("10.0.2.7"), local},
		PolicyRouting: true,
		Links: []Link{{Name: "lo", Addresses: []netip.Addr{netip.IPv6Loopback()}}, {Name: "eth0", Gateway: true},
			{Name: "net1", Addresses: []netip.Addr{local}, Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24"),
				netip.MustParsePrefix("fd00:1::/64")}},
			{Name: "net2", Gateway: true, Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.2.0/24")}},
			{Name: "net3", Gateway: true}},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(equal), cmp.Comparer(equalPrefix)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for address, name := range map[string]string{"fe80::50:56ff:fe00:1": "net1", "10.0.2.7": "net2", "fd00:1::7": "net1",
		"10.9.9.9": ""} {
		link, _ := got.LinkOf([]GID{{Address: netip.MustParseAddr(address)}})
		if link == nil && name != "" || link != nil && link.Name != name {
			t.Errorf("%s: %+v, want %q", address, link, name)
		}
	}
	got.Links[3].Subnets = got.Links[2].Subnets
	if link, subnet := got.LinkOf([]GID{{Address: netip.MustParseAddr("10.0.1.7")}}); link != nil ||
		subnet.String() != "10.0.1.0/24" {
		t.Errorf("two interfaces in one subnet: %+v, %s", link, subnet)
	}
	if err := got.readNetwork(scratch.Dir(t), Process{PID: 7}); err == nil {
		t.Error("a process that has ended: no error")
	}
}

// The greater of the setting for all and of the interface's own counts.
func TestSetStrict(t *testing.T) {
	dir := hcatest.Files{"all/rp_filter": "1\n", "net1/rp_filter": "0\n", "net2/rp_filter": "2\n",
		"net3/rp_filter": "1\n"}.Root(t)
	c := Inside{Links: []Link{{Name: "net1"}, {Name: "net2"}, {Name: "net3"}, {Name: "gone"}}}
	c.setStrict(dir)
	for i, want := range []bool{true, false, true, true} {
		if c.Links[i].Strict != want {
			t.Errorf("%+v, want %t", c.Links[i], want)
		}
	}
}

// The settings are read in the process's network namespace, and this program stays in its own.
func TestReadFilters_otherNamespace(t *testing.T) {
	const script = "echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter && echo 1 >/proc/sys/net/ipv4/conf/lo/rp_filter && " +
		"echo done && exec sleep 60"
	other := exec.CommandContext(t.Context(), "unshare", "--net", "sh", "-c", script)
	out, err := other.StdoutPipe()
	if err == nil {
		err = other.Start()
	}
	if err != nil {
		t.Skipf("no network namespace can be made here: %v", err)
	}
	t.Cleanup(func() { _ = other.Process.Kill(); _ = other.Wait() })
	if n, _ := out.Read(make([]byte, 5)); n != 5 {
		t.Skip("no network namespace can be made here, or /proc/sys cannot be written")
	}
	before, _ := os.Readlink("/proc/self/ns/net")
	c := Inside{Links: []Link{{Name: "lo"}}}
	c.readFilters("/", Process{PID: other.Process.Pid})
	if !c.Links[0].Strict {
		t.Errorf("%+v", c.Links)
	}
	threads, _ := filepath.Glob("/proc/self/task/*")
	for _, thread := range threads {
		after, err := os.Readlink(path.Join(thread, "ns/net"))
		if err == nil && after != before {
			t.Errorf("thread %s is in %s", path.Base(thread), after)
		}
	}
}

func TestGIDs(t *testing.T) {
	files := map[string]string{"p/gids/0": "fe80::1\n", "p/gids/1": "0000:0000:0000:0000:0000:0000:0000:0000\n",
		"p/gids/10": "0000:0000:0000:0000:0000:ffff:0a00:0107\n", "p/gid_attrs/types/10": "RoCE v2\n"}
	match := func(pattern string) (names []string, err error) {
		for name := range files {
			if ok, _ := path.Match(pattern, name); ok {
				names = append(names, name)
			}
		}
		return names, nil
	}
	read := func(name string) (string, error) {
		if text, ok := files[name]; ok {
			return text, nil
		}
		return "", os.ErrNotExist
	}
	table, err := GIDs("p", match, read)
	var got []string
	for _, g := range table {
		got = append(got, strconv.Itoa(g.Index)+" "+g.Address.String()+" "+g.Type)
	}
	if diff := cmp.Diff("0 fe80::1 |10 10.0.1.7 RoCE v2", strings.Join(got, "|")); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for address, want := range map[string]struct{ own, usable bool }{
		"fe80::1": {true, false}, "10.0.1.7": {true, true}, "10.0.1.8": {}} {
		c := Inside{Addresses: []netip.Addr{netip.MustParseAddr(address)}}
		if own, usable := c.Own(table); (len(own) > 0) != want.own || usable != want.usable {
			t.Errorf("%s: %v, %t", address, own, usable)
		}
	}
	if own, usable := (&Inside{Image: Image{LinkLocal: []netip.Addr{netip.MustParseAddr("fe80::1")}}}).Own(table); len(own) != 1 || usable {
		t.Errorf("by the MAC address: %v, %t", own, usable)
	}
}
