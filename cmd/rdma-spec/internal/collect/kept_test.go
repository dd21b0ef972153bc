// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"encoding"
	"encoding/json"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/archive"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// texts are the ways to all texts in the JSON of a type.
func texts(of reflect.Type, way []string, found func(way []string)) {
	further := func(name string) []string { return append(append([]string{}, way...), name) }
	asText, asJSON := reflect.TypeFor[encoding.TextMarshaler](), reflect.TypeFor[json.Marshaler]()
	words := of.Implements(asJSON) && of.Kind() != reflect.Struct && of.Kind() != reflect.Pointer // as a limit is written
	if of.Implements(asText) || words || of.Kind() == reflect.String {
		found(way)
		return
	}
	switch of.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		texts(of.Elem(), way, found)
	case reflect.Map:
		found(further("{}"))
		texts(of.Elem(), further("*"), found)
	case reflect.Struct:
		for i := range of.NumField() {
			f := of.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case name == "-" || !f.IsExported() && !f.Anonymous:
			case name == "" && f.Anonymous:
				texts(f.Type, way, found)
			case name == "":
				texts(f.Type, further(f.Name), found)
			default:
				texts(f.Type, further(name), found)
			}
		}
	}
}

// Each text of an answer is in the table: what is new is kept only once somebody has said what it is.
func TestTableHasEachText(t *testing.T) {
	s, err := node.Open(node.Options{Root: hcatest.V100(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	for name, part := range map[string]any{"kernel-log": s.KernelLog, "runtimes": s.Runtimes, "plugin": s.Plugin,
		"kubelet": s.Kubelet, "configured": s.Configured, "cdi": s.CDI, "rdma-cni": s.RDMACNI, "rdma": s.RDMA,
		"ignored": s.Ignored, "policy": s.JudgedBy, "listing": s.Listing} {
		texts(reflect.TypeOf(part).Out(0), []string{name}, func(way []string) {
			if kindOf(way) == unlisted {
				t.Errorf("fields, in kept.go, has no line for %q: add one that says what kind of text it is", strings.Join(way, " "))
			}
		})
	}
}

// Of what an error quotes, words that are known stay, and secrets go, in whatever form they come.
func TestMessages(t *testing.T) {
	for text, want := range map[string]string{
		`toml: line 3: expected = in psk = "s3cr3t"`:                 `toml: line 3: expected = in … = "…"`,
		`line 7: access_key: s3cr3t, s3cr3t`:                         `line 7: …: …, …`,
		`cannot unmarshal !!str s3cr3t into int`:                     `cannot unmarshal … … into …`,
		`https://user:s3cr@3t@example.com/a?b=c`:                     `…:…:…=c`,
		`/run/containerd/containerd.sock: no such file or directory`: `/run/containerd/containerd.sock: no such file or directory`,
		`memlock is 8Mi, the policy gives 16Gi`:                      `memlock is 8Mi, the policy gives 16Gi`,
		`/home/alice/s3cr3t: permission denied`:                      `…: permission denied`,
	} {
		encoded, err := encodeAnswer(node.Answer{Name: "kubelet.json", JSON: []byte(`{"memlock": 18446744073709551615, "odd": "s3cr3t"}`),
			Error: text}, asIs)
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			Error  string
			Answer struct{ Memlock uint64 }
		}
		if err := json.Unmarshal(encoded, &got); err != nil || got.Answer.Memlock != 1<<64-1 {
			t.Errorf("%v: %s", err, encoded)
		}
		if diff := cmp.Diff(want, got.Error); diff != "" || strings.Contains(string(encoded), "s3cr") {
			t.Errorf("-want +got:\n%s\n%s", diff, encoded)
		}
	}
}

// A MAC keeps its relation to the GUIDs that are made of it, a vendor its MACs, and an address its subnets.
func TestPseudonyms_keepRelations(t *testing.T) {
	s := newPseudonyms(nil)
	for _, b := range []struct{ text, want string }{
		{"b8:59:9f:a9:5b:d0", "ac:00:01:10:00:01"}, {"b859:9f03:00a9:5bd0", "ac00:0103:0010:0001"},
		{"ba:59:9f:a9:5b:d0", "ae:00:01:10:00:01"}, {"ba59:9fff:fea9:5bd0", "ae00:01ff:fe10:0001"},
		{"b8:59:9f:00:00:07", "ac:00:01:10:00:02"}, {"00:15:5d:00:00:07", "ac:00:02:10:00:02"},
		{"00:00:00:00:00:00", "00:00:00:00:00:00"}, {"enxb8599fa95bd0", "enxac0001100001"},
		{"0xb8599f0300a95bd0", "0xac00010300100001"}, {"0000:5e:00.0", "0000:5e:00.0"},
		{"fe80:0000:0000:0000:b859:9f03:00a9:5bd0", "fe80:0000:0000:0000:ac00:0103:0010:0001"},
		{"0000:0000:0000:0000:0000:ffff:0af4:0008", "0000:0000:0000:0000:0000:ffff:1912:0000"}, // of 10.244.0.8
		{"10.244.0.8", "25.18.0.0"}, {"10.244.0.9", "25.18.0.1"}, {"127.0.0.1", "127.0.0.1"},
	} {
		if got := s.text(b.text); got != b.want {
			t.Errorf("%s becomes %s, want %s", b.text, got, b.want)
		}
	}
	for _, one := range []string{"10.244.16.7", "10.245.0.1", "192.168.7.9", "2001:470::1:2", "fd00::7"} {
		for _, other := range []string{"10.244.31.200", "10.9.0.1", "192.168.4.1", "2001:470:0:8::", "fd00::9"} {
			a, b := netip.MustParseAddr(one), netip.MustParseAddr(other)
			for bits := range min(a.BitLen(), 64) {
				was, err := a.Prefix(bits)
				is, failed := s.address(a).Prefix(bits)
				if err != nil || failed != nil || was.Contains(b) != is.Contains(s.address(b)) {
					t.Errorf("%s and %s are one in /%d, or are not: %s, %s", a, b, bits, s.address(a), s.address(b))
				}
			}
		}
	}
}

// The globs of a policy and of the ignore file match the pseudonyms of what they matched, and no two of them are alike.
func TestPseudonyms_globs(t *testing.T) {
	s := newPseudonyms(nil)
	s.known = map[kind][]string{namespace: {"ml-train", "ml-serve", "web"}, pod: {"a-0", "a-1"}, container: {"worker"}}
	for _, g := range []struct {
		kind       kind
		glob, want string
	}{
		{namespaces, "ml-*", "namespace-1\nnamespace-2\nno-namespace-1"}, {namespaces, "*", "*"},
		{namespaces, "prod", "no-namespace-2"}, {namespace, "web", "namespace-3"},
		{wholePod, "web/a-0", "namespace-3/pod-1"},
		{object, "container web/a-* worker HCA mlx5_0", "container namespace-3/pod-1 container-1 HCA mlx5_0\n" +
			"container namespace-3/pod-1 no-container-1 HCA mlx5_0\n"},
		{object, "HCA mlx5_4 *", "HCA mlx5_4 *"}, {object, "container *", "container *"},
		{about, "rdma.noderesource.dev/container.worker", "rdma.noderesource.dev/container.container-1"},
	} {
		if got := s.replace(g.kind, g.glob); got != g.want && (g.kind != object || !strings.HasPrefix(got, g.want)) {
			t.Errorf("%s becomes %q, want %q", g.glob, got, g.want)
		}
	}
}

// Of files, addresses and names go, and what has no pseudonym is left out.
func TestPseudonyms_files(t *testing.T) {
	s := newPseudonyms(nil)
	root := hcatest.Files{
		"sys/devices/x/net/enxb8599fa95bd0/address":        "b8:59:9f:a9:5b:d0\n",
		"sys/devices/x/net/enxb8599fa95bd0/phys_switch_id": "rack 7 of Frankfurt\n",
		"sys/class/infiniband/mlx5_0/node_desc":            "node17 mlx5_0\n",
		"sys/class/infiniband/mlx5_0/fw_ver":               "230.0.162.0\n",
		"proc/sys/kernel/hostname":                         "node17\n",
		"proc/version":                                     "Linux version 6.8.0 (bob@build7) (gcc) #1\n",
		"proc/7/cgroup":                                    "0::/user.slice/alice.scope\n",
		"proc/8/cgroup":                                    "0::/kubepods.slice/x.scope\n",
		"proc/1/net/if_inet6":                              "20010470000000000000000000000005 02 40 00 80 eth0\n",
		"proc/1/net/route":                                 "Iface\tDestination\tGateway\neth0\t0000F40A\t0100F40A\t0003\n",
		"sys/class/net/enxb8599fa95bd0":                    hcatest.Link("../../devices/x/net/enxb8599fa95bd0"),
	}.Root(t)
	copied, _ := take(t, root, "sys/class/*/*/*", "proc/*/*", "proc/*/*/*", "proc/version")
	changed := map[string]archive.Entry{}
	for _, name := range slices.Sorted(maps.Keys(copied)) {
		e := s.entry(copied[name])
		changed[e.Name] = e
	}
	got := strings.Join(lines(changed), "\n")
	for _, one := range []string{"b8:59:9f", "b8599f", "Frankfurt", "node17", "bob", "build7", "alice", "20010470", "F40A"} {
		if strings.Contains(got, one) {
			t.Errorf("%s is in\n%s", one, got)
		}
	}
	for _, one := range []string{"/enxac0001100002/address \"ac:00:01:10:00:02", `fw_ver "230.0.162.0`, `hostname "host-1`,
		`proc/8/cgroup "0::/kubepods.slice/x.scope`, "\"20010db8"} {
		if !strings.Contains(got, one) {
			t.Errorf("%s is not in\n%s", one, got)
		}
	}
}
