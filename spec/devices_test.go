// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"os"
	"testing"

	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/test/testing/expect"
)

const (
	uverbs0Device = `{"path":"/dev/infiniband/uverbs0","type":"c","major":231,"minor":192,"fileMode":438,"uid":0,"gid":0}`
	uverbs0Rule   = `{"allow":true,"type":"c","major":231,"minor":192,"access":"rw"}`
	uverbs1Rule   = `{"allow":true,"type":"c","major":231,"minor":193,"access":"rw"}`
	denial        = `{"allow":false,"access":"rwm"}`
)

func TestAddDevices(t *testing.T) {
	other := uverbs0
	other.Path = "/dev/infiniband/uverbs<0>" // another name of the same device
	setuid := uverbs0
	setuid.Mode, setuid.UID, setuid.GID = hca.Mode(0o640|os.ModeSetuid|os.ModeDevice|os.ModeCharDevice), 7, 8
	for name, test := range map[string]struct {
		devices                []hca.Device
		present, rules         string
		wantDevices, wantRules string
	}{
		"to an empty list": {
			[]hca.Device{uverbs0, uverbs1}, `[]`, `[]`,
			`[` + uverbs0Device +
				`,{"path":"/dev/infiniband/uverbs1","type":"c","major":231,"minor":193,"fileMode":432,"uid":0,"gid":44}]`,
			`[` + uverbs0Rule + `,` + uverbs1Rule + `]`,
		},
		"with permission bits only": {
			[]hca.Device{setuid}, `[]`, `[]`,
			`[{"path":"/dev/infiniband/uverbs0","type":"c","major":231,"minor":192,"fileMode":416,"uid":7,"gid":8}]`,
			`[` + uverbs0Rule + `]`,
		},
		"a path once, though granted twice": {
			[]hca.Device{uverbs0, uverbs0}, `[]`, `[]`,
			`[` + uverbs0Device + `]`, `[` + uverbs0Rule + `]`,
		},
		"a path that is there is left, the rule is added": {
			[]hca.Device{uverbs0}, `[{"path":"/dev/infiniband/uverbs0","type":"c","major":231,"minor":192,"uid":5}]`,
			`[` + denial + `]`,
			`[{"path":"/dev/infiniband/uverbs0","type":"c","major":231,"minor":192,"uid":5}]`, `[` + denial +
				`,` + uverbs0Rule + `]`,
		},
		"OCI's other name for character devices": {
			[]hca.Device{uverbs0}, `[{"path":"/dev/infiniband/uverbs0","type":"u","major":231,"minor":192}]`,
			`[` + uverbs0Rule + `]`,
			`[{"path":"/dev/infiniband/uverbs0","type":"u","major":231,"minor":192}]`, `[` + uverbs0Rule + `]`,
		},
		"one rule for two paths of a device, HTML characters as they are": {
			[]hca.Device{uverbs0, other}, `[]`, `[]`,
			`[` + uverbs0Device +
				`,{"path":"/dev/infiniband/uverbs<0>","type":"c","major":231,"minor":192,"fileMode":438,"uid":0,"gid":0}]`,
			`[` + uverbs0Rule + `]`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			spec := func(devices, rules string) string {
				return `{"linux":{"devices":` + devices + `,"resources":{"devices":` + rules + `}}}`
			}
			got := mustApply(t, Grant{Devices: test.devices}, spec(test.present, test.rules), nil)
			expect.Equal(t, "Apply", spec(test.wantDevices, test.wantRules), got)
		})
	}
}

// A device rule is added if no rule allows the device in the end. Later rules override earlier ones.
func TestAllowDevices(t *testing.T) {
	for name, test := range map[string]struct {
		rules string
		added bool
	}{
		"no rules":   {`[]`, true},
		"all denied": {`[` + denial + `]`, true},
		"allowed":    {`[` + denial + `,` + uverbs0Rule + `]`, false},
		"allowed with mknod": {`[{"allow":true,"type":"c","major":231,"minor":192,"access":"rwm"}]`,
			false},
		"allowed in another order": {`[{"allow":true,"type":"c","major":231,"minor":192,"access":"wr"}]`,
			false},
		"allowed, denied later": {`[` + uverbs0Rule + `,` + denial + `]`, true},
		"allowed, this one denied later": {`[` + uverbs0Rule +
			`,{"allow":false,"type":"c","major":231,"minor":192,"access":"w"}]`, true},
		"denied, allowed, denied, allowed": {`[` + denial + `,` + uverbs0Rule + `,` + denial + `,` +
			uverbs0Rule + `]`, false},
		"another minor":                          {`[` + uverbs1Rule + `]`, true},
		"another major":                          {`[{"allow":true,"type":"c","major":230,"minor":192,"access":"rw"}]`, true},
		"a block device":                         {`[{"allow":true,"type":"b","major":231,"minor":192,"access":"rw"}]`, true},
		"read only":                              {`[{"allow":true,"type":"c","major":231,"minor":192,"access":"r"}]`, true},
		"write only":                             {`[{"allow":true,"type":"c","major":231,"minor":192,"access":"wm"}]`, true},
		"no major":                               {`[{"allow":true,"type":"c","minor":192,"access":"rw"}]`, true},
		"no minor":                               {`[{"allow":true,"type":"c","major":231,"access":"rw"}]`, true},
		"a number that has the same low 32 bits": {`[{"allow":true,"type":"c","major":4294967527,"minor":4294967488,"access":"rw"}]`, true},
		"negative numbers":                       {`[{"allow":true,"type":"c","major":-1,"minor":-1,"access":"rw"}]`, true},
	} {
		t.Run(name, func(t *testing.T) {
			want := `[` + test.rules[1:len(test.rules)-1]
			if test.added && len(want) > 1 {
				want += `,`
			}
			if test.added {
				want += uverbs0Rule
			}
			got := mustApply(t, Grant{Devices: []hca.Device{uverbs0}}, `{"linux":{"devices":[`+uverbs0Device+
				`],"resources":{"devices":`+test.rules+`}}}`, nil)
			expect.Equal(t, "Apply", `{"linux":{"devices":[`+uverbs0Device+`],"resources":{"devices":`+want+`]}}}`, got)
		})
	}
}

// If another device had the path, the container would have a different device than the grant says.
func TestApplyRefusesAnotherDeviceAtThePath(t *testing.T) {
	for name, present := range map[string]string{
		"block device":     `"type":"b","major":231,"minor":192`,
		"pipe":             `"type":"p"`,
		"other major":      `"type":"c","major":1,"minor":192`,
		"other minor":      `"type":"c","major":231,"minor":193`,
		"same low 32 bits": `"type":"c","major":4294967527,"minor":192`,
	} {
		text := []byte(`{"linux":{"devices":[{"path":"/dev/infiniband/uverbs0",` + present + `}]}}`)
		_, err := Grant{Devices: []hca.Device{uverbs0}}.Apply(text, nil)
		if err == nil {
			t.Errorf("%s: Apply grants a device under the path of another", name)
		}
	}
	moved := uverbs1
	moved.Path = uverbs0.Path
	_, err := Grant{Devices: []hca.Device{uverbs0, moved}}.Apply([]byte(`{}`), nil)
	const want = "linux.devices already contains another device at /dev/infiniband/uverbs0 (type c, 231:192), so 231:193 cannot " +
		"be added: remove the other device from the spec"
	if err == nil || err.Error() != want {
		t.Errorf("Apply: %v; want %s", err, want)
	}
}
