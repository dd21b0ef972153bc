// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func TestAllDevices(t *testing.T) {
	minus, major, minor := int64(-1), int64(231), int64(192)
	all := specs.LinuxDeviceCgroup{Allow: true, Access: "rwm"}
	none := specs.LinuxDeviceCgroup{Allow: false, Access: "rwm"}
	one := specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rwm"}
	anyMinor := specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Access: "rwm"}
	for name, test := range map[string]struct {
		rules []specs.LinuxDeviceCgroup
		want  bool
	}{
		"no rules":      {nil, false},
		"privileged":    {[]specs.LinuxDeviceCgroup{all}, true},
		"ordinary":      {[]specs.LinuxDeviceCgroup{none, one}, false},
		"a whole major": {[]specs.LinuxDeviceCgroup{none, anyMinor}, false},
		"allowed last":  {[]specs.LinuxDeviceCgroup{none, one, all}, true},
		"denied last":   {[]specs.LinuxDeviceCgroup{all, none}, false},
		"written with -1": {[]specs.LinuxDeviceCgroup{{Allow: true, Type: "a", Major: &minus, Minor: &minus, Access: "rwm"}},
			true},
	} {
		if got := AllDevices(test.rules); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

func TestMOFED(t *testing.T) {
	for name, test := range map[string]struct {
		environment []string
		want        bool
	}{
		"nothing":              {nil, false},
		"enabled":              {[]string{"PATH=/bin", "NVIDIA_MOFED=enabled", "HOME=/"}, true},
		"a longer name":        {[]string{"MY_NVIDIA_MOFED=enabled", "NVIDIA_MOFED_=enabled"}, false},
		"another value":        {[]string{"NVIDIA_MOFED=enabled "}, false},
		"in another value":     {[]string{"A=NVIDIA_MOFED=enabled"}, false},
		"without a value":      {[]string{"NVIDIA_MOFED"}, false},
		"turned on at the end": {[]string{"NVIDIA_MOFED=0", "NVIDIA_MOFED=enabled"}, true},
	} {
		if got := MOFED(test.environment); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}
