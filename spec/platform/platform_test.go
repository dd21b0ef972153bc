// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coreos/go-systemd/v22/unit"
	"github.com/pelletier/go-toml/v2"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
)

var (
	devices = []hca.Device{
		{Kind: hca.KindVerbs, Path: "/dev/infiniband/uverbs0", Number: hca.Number{Major: 231, Minor: 192},
			Mode: 0o666, HCA: "mlx5_0"},
		{Kind: hca.KindRDMACM, Path: "/dev/infiniband/rdma_cm", Number: hca.Number{Major: 10, Minor: 58}, Mode: 0o666},
	}
	memlock = spec.Grant{Memlock: spec.Unlimited}
	// base has numbers that are large, and a list of each kind.
	base = []byte(`{"ociVersion":"1.2.0","process":{"cwd":"/","rlimits":[{"type":"RLIMIT_CORE","hard":18446744073709551615,"soft":0}],` +
		`"capabilities":{"bounding":["CAP_CHOWN"],"effective":["CAP_CHOWN"],"permitted":["CAP_CHOWN"]}},"hostname":"<b>: &x {y}",` +
		`"linux":{"futureField":[9007199254740992,-5,9223372036854771712],"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`)
)

type question struct {
	name  string
	grant spec.Grant
	base  []byte
}

// cases are what is asked of each platform. Those that it refuses must say so.
var cases = []question{
	{"memlock", memlock, nil},
	{"finite", spec.Grant{Memlock: 16 << 30}, nil},
	{"largest", spec.Grant{Memlock: math.MaxInt64}, nil},
	{"above-largest", spec.Grant{Memlock: math.MaxInt64 + 1}, nil},
	{"ipc-lock", spec.Grant{Memlock: spec.Unlimited, IPCLock: spec.IPCLockYes}, nil},
	{"devices", spec.Grant{Memlock: spec.Unlimited, Devices: devices}, nil},
	{"base", spec.Grant{Memlock: spec.Unlimited, IPCLock: spec.IPCLockYes, Devices: devices}, base},
}

var refusals = map[string]string{
	"docker/ipc-lock": "the configuration of docker cannot give CAP_IPC_LOCK: give it to a container with docker " +
		"run --cap-add IPC_LOCK",
	"docker/devices": "the configuration of docker cannot give devices: give them to a container with docker run " +
		"--device /dev/infiniband",
	"docker/base": "the configuration of docker cannot start from another base spec: it has no base spec; " +
		"leave --from out",
	"crio/ipc-lock": "the configuration of crio cannot give CAP_IPC_LOCK: its default_capabilities can only be " +
		"replaced as a whole; add IPC_LOCK in the pod's securityContext",
	"crio/devices": "the configuration of crio cannot give devices: with a path in additional_devices that is " +
		"missing, CRI-O does not start; use a device plugin",
	"crio/base": "the configuration of crio cannot start from another base spec: it has no base spec; leave " +
		"--from out",
	"talos/base": "the configuration of talos cannot start from another base spec: it adds to its own base " +
		"spec; leave --from out",
	"bottlerocket/devices": "the configuration of bottlerocket cannot give devices: it has no setting for them; use a " +
		"device plugin",
	"bottlerocket/base": "the configuration of bottlerocket cannot start from another base spec: it makes its own " +
		"base spec; leave --from out",
	"systemd/ipc-lock": "the configuration of systemd cannot give CAP_IPC_LOCK: containers do not inherit it from " +
		"containerd; leave --ipc-lock out",
	"systemd/devices": "the configuration of systemd cannot give devices: containers do not inherit them from " +
		"containerd; use a device plugin",
	"systemd/base": "the configuration of systemd cannot start from another base spec: a unit has no base spec; " +
		"leave --from out",
}

// parsers prove the syntax with what others wrote.
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

func asJSON(value any) []byte {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return text
}

func TestConfigGolden(t *testing.T) {
	for _, p := range All {
		for _, c := range cases {
			name := p.Name + "/" + c.name
			t.Run(name, func(t *testing.T) {
				got, err := p.Config(c.grant, c.base)
				if refusal := refusals[name]; refusal != "" {
					if err == nil || err.Error() != refusal {
						t.Errorf("Config: %v; want %s", err, refusal)
					}
					if got != nil {
						t.Errorf("Config gives an error and a text: %s", got)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				var whatever any
				if err := parsers[p.Name](got, &whatever); err != nil {
					t.Errorf("%s cannot read this: %v\n%s", p.Name, err, got)
				}
				if p.Name == "containerd" && c.base == nil {
					return // containerd's default is golden in its own package, and has paths of this machine's CPUs
				}
				golden.Compare(t, filepath.Join("testdata", p.Name+"-"+c.name+".golden"), string(got))
			})
		}
	}
}

// Each golden file belongs to a case: one that is left over shows a case that is gone.
func TestGoldenFilesAreUsed(t *testing.T) {
	files, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		platform, name, _ := strings.Cut(strings.TrimSuffix(file.Name(), ".golden"), "-")
		if _, err := Find(platform); err != nil || !slices.ContainsFunc(cases, func(c question) bool {
			return c.name == name && refusals[platform+"/"+name] == ""
		}) {
			t.Errorf("testdata/%s belongs to no case", file.Name())
		}
	}
}

// What holds for every container of a node must say so, and say where it goes: in the text, or where that has no
// comments, in the note.
func TestConfigSaysWhatItAffects(t *testing.T) {
	for _, p := range All {
		if p.Name == "containerd" {
			continue // the administrator chooses the file and the handler; the text is a base spec and nothing else
		}
		text, err := p.Config(memlock, nil)
		if err != nil {
			t.Fatal(err)
		}
		var comments string
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "#") {
				comments += line
			}
		}
		if (comments == "") != (p.Note != "") {
			t.Errorf("%s: comments %q and note %q: one of them", p.Name, comments, p.Note)
		}
		if said := comments + p.Note; !strings.Contains(said, "ffects ") || !strings.Contains(said, "every ") ||
			!strings.ContainsAny(said, "/@") && !strings.Contains(said, "user data") {
			t.Errorf("%s does not say where this goes and what it affects: %q", p.Name, said)
		}
	}
}

func TestConfigNeedsAMemlock(t *testing.T) {
	for _, p := range All {
		if text, err := p.Config(spec.Grant{IPCLock: spec.IPCLockYes}, nil); err == nil ||
			err.Error() != "a platform's configuration needs a memlock" {
			t.Errorf("%s: %v\n%s", p.Name, err, text)
		}
	}
}

func TestConfigRefusesABaseThatCannotBeChanged(t *testing.T) {
	for _, name := range []string{"containerd", "nodeadm"} {
		p, err := Find(name)
		if err != nil {
			t.Fatal(err)
		}
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
	const want = `unknown platform "podman": write one of containerd, docker, crio, nodeadm, talos, bottlerocket, systemd`
	if _, err := Find("podman"); err == nil || err.Error() != want {
		t.Errorf("Find: %v; want %s", err, want)
	}
}

func TestGivesIPCLock(t *testing.T) {
	for _, p := range All {
		_, refused := refusals[p.Name+"/ipc-lock"]
		if p.GivesIPCLock() == refused {
			t.Errorf("%s gives CAP_IPC_LOCK: %v", p.Name, p.GivesIPCLock())
		}
	}
}
