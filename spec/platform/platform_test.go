// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coreos/go-systemd/v22/unit"
	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/pelletier/go-toml/v2"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
)

var (
	devices = []hca.Device{
		{Kind: hca.KindVerbs, Path: "/dev/infiniband/uverbs0", Number: hca.Number{Major: 231, Minor: 192},
			Mode: 0o666, HCA: "mlx5_0"},
		{Kind: hca.KindRDMACM, Path: "/dev/infiniband/rdma_cm", Number: hca.Number{Major: 10, Minor: 58}, Mode: 0o666},
	}
	memlock = spec.Grant{Memlock: spec.Unlimited}
	// base contains large numbers, and a list of each kind.
	base = []byte(`{"ociVersion":"1.2.0","process":{"cwd":"/","rlimits":[{"type":"RLIMIT_CORE","hard":18446744073709551615,"soft":0}],` +
		`"capabilities":{"bounding":["CAP_CHOWN"],"effective":["CAP_CHOWN"],"permitted":["CAP_CHOWN"]}},"hostname":"<b>: &x {y}",` +
		`"linux":{"futureField":[9007199254740992,-5,9223372036854771712],"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`)
)

type question struct {
	name  string
	grant spec.Grant
	base  []byte
}

// cases are the grants that each platform is asked to express. A platform that cannot must say so.
var cases = []question{
	{"memlock", memlock, nil},
	{"finite", spec.Grant{Memlock: 16 << 30}, nil},
	{"largest", spec.Grant{Memlock: math.MaxInt64}, nil},
	{"above-largest", spec.Grant{Memlock: math.MaxInt64 + 1}, nil},
	{"ipc-lock", spec.Grant{Memlock: spec.Unlimited, IPCLock: spec.IPCLockYes}, nil},
	{"devices", spec.Grant{Memlock: spec.Unlimited, Devices: devices}, nil},
	{"base", spec.Grant{Memlock: spec.Unlimited, IPCLock: spec.IPCLockYes, Devices: devices}, base},
}

// parsers check the output's syntax with independent parsers.
var parsers = map[string]func(text []byte, into any) error{
	"containerd":   strictJSON,
	"docker":       strictJSON,
	"crio":         strictTOML,
	"bottlerocket": strictTOML,
	"nodeadm":      func(text []byte, into any) error { return yaml.UnmarshalStrict(text, into) },
	"talos":        func(text []byte, into any) error { return yaml.UnmarshalStrict(text, into) },
	"systemd": func(text []byte, into any) error {
		options, err := unit.DeserializeOptions(bytes.NewReader(text))
		if err != nil {
			return err
		}
		*into.(*any) = options
		return nil
	},
}

func strictJSON(text []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	return decoder.Decode(into)
}

func strictTOML(text []byte, into any) error {
	return toml.NewDecoder(bytes.NewReader(text)).DisallowUnknownFields().Decode(into)
}

func TestConfigGolden(t *testing.T) {
	var refused strings.Builder
	for _, p := range All {
		for _, c := range cases {
			name := p.Name + "/" + c.name
			t.Run(name, func(t *testing.T) {
				got, err := p.Config(c.grant, c.base)
				if err != nil {
					fmt.Fprintf(&refused, "%s\n    %v\n", name, err)
					if got != nil {
						t.Errorf("Config gives an error and a text: %s", got)
					}
					return
				}
				var whatever any
				if err := parsers[p.Name](got, &whatever); err != nil {
					t.Errorf("%s cannot read this: %v\n%s", p.Name, err, got)
				}
				if p.Name == "containerd" && c.base == nil {
					return // containerd's default has its own golden file, and contains paths for this machine's CPUs
				}
				golden.Compare(t, filepath.Join("testdata", p.Name+"-"+c.name+".golden"), string(got))
			})
		}
	}
	golden.Compare(t, filepath.Join("testdata", "refusals.golden"), refused.String())
}

func TestConfigNeedsAMemlock(t *testing.T) {
	for _, p := range All {
		if text, err := p.Config(spec.Grant{IPCLock: spec.IPCLockYes}, nil); err == nil ||
			err.Error() != "a platform's configuration needs a locked-memory limit (memlock)" {
			t.Errorf("%s: %v\n%s", p.Name, err, text)
		}
	}
}

func TestConfigRefusesABaseThatCannotBeChanged(t *testing.T) {
	for _, name := range []string{"containerd", "nodeadm"} {
		p, err := Find(name)
		must.Succeed(t, err)
		for _, text := range []string{"", "[]", `{"process":[]}`, `{"process":{},"Process":{}}`} {
			if out, err := p.Config(memlock, []byte(text)); err == nil || out != nil {
				t.Errorf("%s: Config with the base %q: %v\n%s", name, text, err, out)
			}
		}
	}
}

func TestFind(t *testing.T) {
	for _, p := range All {
		if got, err := Find(p.Name); err != nil || got.Name != p.Name {
			t.Errorf("Find(%q) = %q, %v", p.Name, got.Name, err)
		}
	}
	const want = `unknown platform "podman": specify one of containerd, docker, crio, nodeadm, talos, bottlerocket, systemd`
	if _, err := Find("podman"); err == nil || err.Error() != want {
		t.Errorf("Find: %v; want %s", err, want)
	}
}

func TestGivesIPCLock(t *testing.T) {
	for _, p := range All {
		_, err := p.Config(spec.Grant{Memlock: spec.Unlimited, IPCLock: spec.IPCLockYes}, nil)
		if p.GivesIPCLock() != (err == nil) {
			t.Errorf("%s gives CAP_IPC_LOCK: %v", p.Name, p.GivesIPCLock())
		}
	}
}

func TestContainerdAppliesTheGrantToItsOwnSpec(t *testing.T) {
	text, err := All[0].Config(spec.Grant{Memlock: spec.Unlimited, IPCLock: spec.IPCLockYes}, nil)
	must.Succeed(t, err)
	var s specs.Spec
	must.Succeed(t, strictJSON(text, &s))
	want := []specs.POSIXRlimit{{Type: "RLIMIT_MEMLOCK", Hard: math.MaxUint64, Soft: math.MaxUint64}}
	if diff := cmp.Diff(want, s.Process.Rlimits); diff != "" || s.Version != "1.0.2" {
		t.Errorf("ociVersion %s, rlimits (-want +got):\n%s", s.Version, diff)
	}
}

// nodeadm and Talos merge the output into the platform's own spec, and convert numbers to float64. Neither may lose the
// limit.
func TestOverridesSurviveFloatingPoint(t *testing.T) {
	for name, find := range map[string]func(map[string]any) any{
		"nodeadm": func(d map[string]any) any {
			return d["spec"].(map[string]any)["containerd"].(map[string]any)["baseRuntimeSpec"]
		},
		"talos": func(d map[string]any) any { return d["overrides"] },
	} {
		p, err := Find(name)
		must.Succeed(t, err)
		text, err := p.Config(spec.Grant{Memlock: spec.Unlimited, IPCLock: spec.IPCLockYes, Devices: devices}, nil)
		must.Succeed(t, err)
		var document map[string]any // decodes numbers as float64
		must.Succeed(t, yaml.UnmarshalStrict(text, &document))
		text, err = json.Marshal(find(document))
		must.Succeed(t, err)
		var s specs.Spec
		if err := strictJSON(text, &s); err != nil {
			t.Errorf("%s: containerd would not read the spec: %v", name, err)
			continue
		}
		for _, l := range s.Process.Rlimits {
			if l.Type == "RLIMIT_MEMLOCK" && (l.Soft < math.MaxInt64 || l.Hard < math.MaxInt64) {
				t.Errorf("%s: memlock became %d:%d", name, l.Soft, l.Hard)
			}
		}
		for set, names := range map[string][]string{"bounding": s.Process.Capabilities.Bounding,
			"effective": s.Process.Capabilities.Effective, "permitted": s.Process.Capabilities.Permitted} {
			if len(names) != 15 || !slices.Contains(names, "CAP_IPC_LOCK") || !slices.Contains(names, "CAP_CHOWN") {
				t.Errorf("%s: a list that takes the place of the platform's own is not whole: %s %v", name, set, names)
			}
		}
		if rules := s.Linux.Resources.Devices; len(rules) != 3 || rules[0].Allow || !rules[2].Allow {
			t.Errorf("%s: device rules %v", name, rules)
		}
	}
}

func TestNodeadmRefusesNumbersItCannotHold(t *testing.T) {
	for _, number := range []string{"1e400", "0.5", "18446744073709551616", "-9223372036854775809", "1e3",
		"9007199254740993", "9223372036854775806"} {
		for _, text := range []string{`{"x":` + number + `}`, `{"x":[{"y":[` + number + `]}]}`} {
			_, err := nodeadm(memlock, []byte(text))
			want := "the spec contains the number " + number +
				", which this platform cannot represent: write a whole number up to 2^53, or 9223372036854775807 for unlimited"
			if err == nil || err.Error() != want {
				t.Errorf("%s: %v; want %s", text, err, want)
			}
		}
	}
}
