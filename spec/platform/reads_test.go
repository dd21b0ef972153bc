// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"bytes"
	"math"
	"slices"
	"testing"

	"github.com/coreos/go-systemd/v22/unit"
	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/spec"
)

func TestContainerdAppliesTheGrantToItsOwnSpec(t *testing.T) {
	text, err := All[0].Config(spec.Grant{Memlock: spec.Unlimited, IPCLock: spec.IPCLockYes}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var s specs.Spec
	if err := strictJSON(text, &s); err != nil {
		t.Fatal(err)
	}
	want := []specs.POSIXRlimit{{Type: "RLIMIT_MEMLOCK", Hard: math.MaxUint64, Soft: math.MaxUint64}}
	if diff := cmp.Diff(want, s.Process.Rlimits); diff != "" || s.Version != "1.0.2" {
		t.Errorf("ociVersion %s, rlimits (-want +got):\n%s", s.Version, diff)
	}
}

// Docker's daemon.json, as dockerd reads it.
func TestDockerReads(t *testing.T) {
	for limit, want := range map[spec.Limit]int64{spec.Unlimited: -1, math.MaxInt64 + 1: -1, 16 << 30: 16 << 30} {
		text, err := docker(spec.Grant{Memlock: limit}, nil)
		if err != nil {
			t.Fatal(err)
		}
		type ulimit struct {
			Name       string
			Hard, Soft int64
		}
		var got struct {
			DefaultUlimits map[string]ulimit `json:"default-ulimits"`
		}
		if err := strictJSON(text, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string]ulimit{"memlock": {"memlock", want, want}}, got.DefaultUlimits); diff != "" {
			t.Errorf("memlock %v (-want +got):\n%s", limit, diff)
		}
	}
}

// CRI-O's drop-in, as CRI-O reads it: SOFT:HARD.
func TestCRIOReads(t *testing.T) {
	text, err := crio(spec.Grant{Memlock: 16 << 30}, nil)
	if err != nil {
		t.Fatal(err)
	}
	type runtime struct {
		DefaultUlimits []string `toml:"default_ulimits"`
	}
	var got struct{ Crio struct{ Runtime runtime } }
	if err := strictTOML(text, &got); err != nil {
		t.Fatal(err)
	}
	want := runtime{[]string{"memlock=17179869184:17179869184"}}
	if diff := cmp.Diff(want, got.Crio.Runtime); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestBottlerocketReads(t *testing.T) {
	for limit, want := range map[spec.Limit]any{spec.Unlimited: "unlimited", math.MaxInt64 + 1: "unlimited",
		math.MaxInt64: int64(math.MaxInt64), 16 << 30: int64(16 << 30)} {
		text, err := bottlerocket(spec.Grant{Memlock: limit, IPCLock: spec.IPCLockYes}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var got any
		if err := strictTOML(text, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string]any{"settings": map[string]any{"oci-defaults": map[string]any{
			"capabilities":    map[string]any{"ipc-lock": true},
			"resource-limits": map[string]any{"max-locked-memory": map[string]any{"hard-limit": want, "soft-limit": want}},
		}}}, got); diff != "" {
			t.Errorf("memlock %v (-want +got):\n%s", limit, diff)
		}
	}
}

func TestSystemdReads(t *testing.T) {
	for limit, want := range map[spec.Limit]string{spec.Unlimited: "infinity", 16 << 30: "17179869184",
		math.MaxUint64 - 1: "18446744073709551614"} {
		text, err := systemd(spec.Grant{Memlock: limit}, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := unit.DeserializeOptions(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]*unit.UnitOption{{Section: "Service", Name: "LimitMEMLOCK", Value: want}}, got); diff != "" {
			t.Errorf("memlock %v (-want +got):\n%s", limit, diff)
		}
	}
}

// What nodeadm and Talos make of it: lay it over the platform's own spec by way of float64. Neither may lose the limit.
func TestOverridesSurviveFloatingPoint(t *testing.T) {
	for name, find := range map[string]func(map[string]any) any{
		"nodeadm": func(d map[string]any) any {
			return d["spec"].(map[string]any)["containerd"].(map[string]any)["baseRuntimeSpec"]
		},
		"talos": func(d map[string]any) any { return d["overrides"] },
	} {
		p, err := Find(name)
		if err != nil {
			t.Fatal(err)
		}
		text, err := p.Config(spec.Grant{Memlock: spec.Unlimited, IPCLock: spec.IPCLockYes, Devices: devices}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var document map[string]any // numbers are float64
		if err := yaml.UnmarshalStrict(text, &document); err != nil {
			t.Fatal(err)
		}
		var s specs.Spec
		if err := strictJSON(asJSON(find(document)), &s); err != nil {
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

// nodeadm's own RLIMIT_NOFILE would be lost with the list in which it stands.
func TestNodeadmKeepsItsFileLimit(t *testing.T) {
	text, err := nodeadm(memlock, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Spec struct {
			Containerd struct {
				BaseRuntimeSpec struct {
					Process struct{ Rlimits []specs.POSIXRlimit }
				}
			}
		}
	}
	if err := yaml.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	want := []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 1048576, Soft: 65536},
		{Type: "RLIMIT_MEMLOCK", Hard: math.MaxInt64, Soft: math.MaxInt64}}
	if diff := cmp.Diff(want, got.Spec.Containerd.BaseRuntimeSpec.Process.Rlimits); diff != "" {
		t.Errorf("rlimits (-want +got):\n%s", diff)
	}
}

func TestNodeadmRefusesNumbersItCannotHold(t *testing.T) {
	for _, number := range []string{"1e400", "0.5", "18446744073709551616", "-9223372036854775809", "1e3",
		"9007199254740993", "9223372036854775806"} {
		for _, text := range []string{`{"x":` + number + `}`, `{"x":[{"y":[` + number + `]}]}`} {
			_, err := nodeadm(memlock, []byte(text))
			want := "the spec has the number " + number +
				", which this platform would change: write a whole number up to 2^53, or 9223372036854775807 for unlimited"
			if err == nil || err.Error() != want {
				t.Errorf("%s: %v; want %s", text, err, want)
			}
		}
	}
}
