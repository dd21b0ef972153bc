// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// A unit is what systemd makes of its files: directories in order, drop-ins by name, and an empty value takes back.
func TestUnitSettings(t *testing.T) {
	const usr, run, etc = "usr/lib/systemd/system/x.service", "run/systemd/system/x.service", "etc/systemd/system/x.service"
	for name, test := range map[string]struct {
		files map[string]string
		want  []Setting
	}{
		"no unit":            {map[string]string{etc + ".d/a.conf": "[Service]\nLimitMEMLOCK=1\n"}, nil},
		"one":                {map[string]string{usr: "[Unit]\nLimitMEMLOCK=7\n[Service]\nLimitMEMLOCK = 64K\n"}, []Setting{{"/" + usr, "64K"}}},
		"an administrator's": {map[string]string{usr: "[Service]\nLimitMEMLOCK=1\n", etc: "[Service]\n"}, nil},
		"drop-ins": {map[string]string{usr: "[Service]\nLimitMEMLOCK=1\n", usr + ".d/b.conf": "[Service]\nLimitMEMLOCK=2\n",
			run + ".d/c.conf": "[Service]\nLimitMEMLOCK=3\n", etc + ".d/a.conf": "[Service]\nLimitMEMLOCK=4\n", etc + ".d/z.bak": "[Service]\nLimitMEMLOCK=5\n"},
			[]Setting{{"/" + usr, "1"}, {"/" + etc + ".d/a.conf", "4"}, {"/" + usr + ".d/b.conf", "2"}, {"/" + run + ".d/c.conf", "3"}}},
		"one name": {map[string]string{usr: "[Service]\n", usr + ".d/a.conf": "[Service]\nLimitMEMLOCK=1\n", etc + ".d/a.conf": "[Service]\nLimitMEMLOCK=2\n"},
			[]Setting{{"/" + etc + ".d/a.conf", "2"}}},
		"taken back":   {map[string]string{usr: "[Service]\nLimitMEMLOCK=1\n", etc + ".d/a.conf": "[Service]\nLimitMEMLOCK=\nLimitMEMLOCK=2\n"}, []Setting{{"/" + etc + ".d/a.conf", "2"}}},
		"no unit file": {map[string]string{usr: "garbage", etc + ".d/a.conf": "[Service\n"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			root := scratch.With(t, test.files, 0o600)
			if diff := cmp.Diff(test.want, UnitSettings(root, "x.service", "LimitMEMLOCK")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestStarts(t *testing.T) {
	for name, test := range map[string]struct{ unit, env, want string }{
		"plain":          {"ExecStart=/usr/bin/containerd --config /x\n", "", "/usr/bin/containerd|--config|/x"},
		"prefixes":       {"ExecStart=-+/usr/bin/containerd\n", "", "/usr/bin/containerd"},
		"quotes":         {"ExecStart=/a \"b c\" 'd \"e' \"\"\n", "", `/a|b c|d "e`},
		"over lines":     {"ExecStart=/a \\\n  -b \\\n  c\n", "", "/a|-b|c"},
		"the last":       {"ExecStart=/a\nExecStart=\nExecStart=/b\n", "", "/b"},
		"variables":      {"Environment=\"A=-c /x\" B=y\nExecStart=/a $A ${B} --z=${B}/q $NONE ${NONE}\n", "", "/a|-c|/x|y|--z=y/q"},
		"a file of them": {"EnvironmentFile=-/etc/env\nEnvironmentFile=/nowhere\nExecStart=/a $A\n", "# A=-z\nA=\"-c /x\"\nB\n", "/a|-c|/x"},
		"no command":     {"Type=oneshot\n", "", ""},
		"only prefixes":  {"ExecStart=@-\n", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := scratch.With(t, map[string]string{"usr/lib/systemd/system/x.service": "[Service]\n" + test.unit, "etc/env": test.env}, 0o600)
			if got := strings.Join(Starts(root, "x.service").Args, "|"); got != test.want {
				t.Errorf("it starts %s, want %s", got, test.want)
			}
		})
	}
}

func FuzzWords(f *testing.F) {
	f.Add(`/a "b c" 'd' "`)
	f.Fuzz(func(t *testing.T, line string) {
		if strings.ContainsAny(line, `"'`) {
			_ = words(line)
			return
		}
		if diff := cmp.Diff(strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t\n", r) }), words(line)); diff != "" && words(line) != nil {
			t.Errorf("(-fields +words):\n%s", diff)
		}
	})
}
