// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/expect"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"
)

var badConfigs = []string{
	// not a configuration at all
	"", " \n\t\n", "5", "true", "memlock", "[]", "[memlock: 1Gi]", "memlock: [", "memlock: 1Gi\n foo: bar",
	"\tmemlock: 1Gi", "memlock: \x01", "? [a]\n: b",
	strings.Repeat("[", 20_000), strings.Repeat("{a: ", 20_000),
	// two of them
	"memlock: 1Gi\n---\nrules: []", "{memlock: 1Gi} rules:", "memlock: 1Gi\n...\nrules:\n- name: a",
	// keys
	"memlok: 1Gi", "Memlock: 1Gi", "MEMLOCK: 1Gi", "\"mem lock\": 1", "optIn: {device: true}", "optIn: {namespace: [a]}",
	"inject: {name: [a]}", "inject: {always: true}",
	"rules:\n- match: {namespaces: [a]}\n- match: {namespace: [b]}", "rules: [{mach: {}, memlok: 1}]",
	"rules: [{match: {namespaces: [a]}, inject: {names: [a], numa: 1, namespaces: [b]}}]", "1: 2",
	"memlock: 1\nmemlock: 2", "optIn: {devices: true, devices: false}", "rules:\n- memlock: 1\n  memlock: 2",
	// what is gone
	"devices: {names: [a]}", "optIn: {annotation: {namespaces: [a]}}", "optIn: {onKubeletError: fail}",
	"repair: {mode: fix, every: 30s}", "{memlock: 1Gi, repair: off}",
	"optIn: {nvidiaMOFED: {runtimeHandlers: [a]}}", "rules: [{match: {namespaces: [a]}, deny: true, message: b}]",
	"rules: [{match: {labels: {a: b}, runtimeHandlers: [c]}, devices: {}}]", "ipcLock: force", "ipcLock: unless-dropped",
	// types
	"optIn: [1]", "optIn: yes", "optIn: {devices: 1}", "optIn: {devices: 'true'}", "optIn: {resources: rdma/*}",
	"optIn: {resources: [1, rdma/*, true]}",
	"inject: {numaNodes: [a]}", "inject: {numaNodes: [1.5]}", "inject: {numaNodes: [99999999999999999999]}",
	"inject: {numaNodes: 1}", "inject: {management: 5}", "inject: all",
	"skipRuntimeHandlers: kata", "rules: {a: b}", "rules: [a]", "rules: [{match: {namespaces: 5}}]",
	"rules: [{match: {namespaces: [a, 5]}}]", "rules: [{name: 5}]",
	"rules: [{match: {namespaces: [a]}, inject: {always: 'yes'}}]",
	// keys without a value
	"memlock:", "optIn:", "optIn: {namespaces: }", "rules:", "rules: [null]",
	"rules: [{match: {namespaces: [a], resources: }}]", "rules: [{match: {namespaces: [~]}}]",
	"rules: [{memlock: ~, match: {namespaces: ~}}]", "\"a\\nb\": ~",
	// values
	"memlock: 0", "memlock: -1", "memlock: 16GB", "memlock: ''", "memlock: .inf", "memlock: [1]", "memlock: true",
	"memlock: 1e-99999999", "memlock: Memory-Limit", "memlock: unchanged",
	"ipcLock: maybe", "ipcLock: ''", "ipcLock: 1", "{memlock: nonsense, ipcLock: sometimes}",
	"optIn: {resources: ['*']}", "optIn: {resources: [rdma]}", "optIn: {resources: [a/b/c]}",
	"optIn: {resources: ['rdma/[']}", "optIn: {resources: ['']}", "optIn: {resources: ['a /b']}",
	"optIn: {namespaces: ['ml-*', 'ml/*']}", "optIn: {namespaces: ['[!k]*']}", "inject: {namespaces: ['ml-* ']}",
	"inject: {namespaces: ['a\\']}", "inject: {namespaces: ['']}",
	"optIn: {mofedRuntimeHandlers: nvidia}", "optIn: {mofedRuntimeHandlers: ['nvidia *']}", "skipRuntimeHandlers: ['a\x7fb']", "skipRuntimeHandlers: [\"a\\tb\"]",
	"inject: {management: true}", "inject: {linkLayers: [InfiniBand, ethernet]}",
	"inject: {names: [/dev/infiniband/uverbs0]}", "inject: {netdevs: ['']}", "inject: {numaNodes: [0, -2]}",
	"inject: {functions: []}", "inject: {functions: [physical, vf]}", "inject: {names: []}",
	// rules
	"rules: [{}]", "rules: [{memlock: 1Gi}]", "rules: [{match: {}, memlock: unlimited}]",
	"rules: [{match: {namespaces: []}}]", "rules: [{match: {namespaces: [a], resources: []}}]",
	"rules: [{match: {namespaces: ['']}}]", "rules: [{match: {resources: ['*']}}]",
	"rules: [{match: {namespaces: ['a/b'], resources: ['[']}}]",
	"rules: [{match: {namespaces: [a]}, memlock: lots, ipcLock: perhaps, inject: {names: ['['], functions: [], " +
		"linkLayers: [x], netdevs: ['a/b'], numaNodes: [-5]}}]",
	"rules: [{match: {resources: [a/b]}, inject: {management: true}}]",
	"rules: [{name: a, match: {namespaces: [a]}}, {name: a, match: {namespaces: [b]}}]",
	"rules: [{name: 'rules[1]', match: {namespaces: [a]}}, {match: {namespaces: [b]}}]",
	"rules: [{name: default, match: {namespaces: [a]}}]",
	"rules: [{name: " + strings.Repeat("n", 64) + ", match: {namespaces: [a]}}]",
	"rules: [{name: \"a\\nb\", match: {namespaces: [a]}}]", "rules: [{name: \"a\\u202eb\", match: {namespaces: [a]}}]",
	"rules: [{match: {namespaces: [a, 'b*']}}, {match: {resources: [a/b]}}, {match: {namespaces: [a, bc], resources: " +
		"[c/d]}}]",
	"rules: [" + strings.Repeat("1,", 10_000) + "]", "rules: [" + strings.Repeat("{},", 10_000) + "]",
	"{memlock: x, ipcLock: x, rules: [{match: {namespaces: [a]}}, {}]}",
}

// What a configuration cannot be, and what is said to that.
func TestConfigIsRefused(t *testing.T) {
	var got strings.Builder
	for _, config := range badConfigs {
		_, err := FromText([]byte(config))
		if err == nil {
			t.Errorf("taken: %s", config)
			continue
		}
		name := strings.ReplaceAll(config, "\n", "⏎")
		if len(name) > 300 {
			name = name[:60] + "…"
		}
		fmt.Fprintf(&got, "%s\n    %s\n", name, strings.ReplaceAll(err.Error(), "\n", "\n    "))
	}
	if _, err := FromText([]byte(strings.Repeat("#", maxConfigSize+1))); err == nil {
		t.Error("a configuration above the bound is taken")
	} else {
		fmt.Fprintf(&got, "more than a mebibyte\n    %v\n", err)
	}
	golden.Compare(t, filepath.Join("testdata", "config.golden"), got.String())
}

func TestConfigDefaults(t *testing.T) {
	for _, text := range []string{"{}", "# a comment", "---", "---\n# a comment\n", "null", "memlock: unlimited",
		"optIn: {}", "\ufeff{}", "rules: []\n...\n"} {
		got, err := Parse([]byte(text))
		if err != nil {
			t.Errorf("%q is refused: %v", text, err)
		}
		expect.Equal(t, "the configuration "+text, Default(), got)
	}
}

// everything says all that a configuration can, with other values than the defaults.
const everything = `{memlock: 16Gi, ipcLock: always, skipRuntimeHandlers: [kata, ''],
optIn: {devices: false, resources: [rdma/*], namespaces: [opt-*], mofedRuntimeHandlers: ['nvidia*', '']},
inject: {namespaces: [ml-*], names: [mlx5_*], functions: [physical, virtual], linkLayers: [InfiniBand], netdevs: [ib*],
  numaNodes: [0, -1]},
rules: [{name: 'true', match: {namespaces: [a], resources: [r/s]}, memlock: 65536, ipcLock: false, inject: {names: [x],
  functions: [scalable], linkLayers: [], netdevs: [], numaNodes: [], management: true, always: true}},
  {match: {namespaces: [b]}, memlock: unchanged, inject: {}}, {match: {resources: [r/s]}}]}`

// What config show writes of the defaults. FuzzConfig reads again what it writes of others.
func TestDefaultConfig(t *testing.T) {
	text, err := yaml.Marshal(policyOf(t, "").Config())
	must.Succeed(t, err)
	golden.Compare(t, filepath.Join("testdata", "default.yaml"), string(text))
	given := Default()
	given.Rules = []Rule{{Match: Match{Namespaces: []string{"b"}}, Inject: &RuleInject{}}}
	if _, err := New(given); err != nil || given.Rules[0].Inject.Names != nil {
		t.Errorf("New has changed the configuration that it was given: %v", err)
	}
}

// TestConfig_keys checks what each key of the configuration needs: a default, a check of its values, an error that says
// what is expected if a value has another type, and a place in what the tests of this package configure.
func TestConfig_keys(t *testing.T) {
	all, err := Parse([]byte(everything))
	must.Succeed(t, err)
	config := Default()
	eachKey("", reflect.ValueOf(&config).Elem(), reflect.ValueOf(all), func(key string, value, everything reflect.Value) {
		if value.Kind() == reflect.Slice && value.IsNil() {
			t.Errorf("%s: Default gives it no value: write one, such as an empty list", key)
		}
		keys := strings.Split(key, ".")
		text := strings.Join(keys, ": {") + ": {a: b}" + strings.Repeat("}", len(keys)-1)
		if _, err := FromText([]byte(text)); err == nil || !strings.HasPrefix(err.Error(), key) ||
			strings.HasSuffix(err.Error(), "expected ") {
			t.Errorf("%s is refused with %v: add its type to expected, in parse.go", text, err)
		}
		unset := key == "inject.management" || key == "optIn.deviceAnnotations"
		if reflect.DeepEqual(value.Interface(), everything.Interface()) != unset {
			t.Errorf("%s: everything, in this file, has to set it to another value than the default", key)
		}
		if list, ok := value.Interface().([]string); ok {
			value.Set(reflect.ValueOf([]string{"a\x7f b"}))
			if _, err := New(config); err == nil {
				t.Errorf("%s: New takes any text: check what it may be", key)
			}
			value.Set(reflect.ValueOf(list))
		}
	})
}

func TestLoad(t *testing.T) {
	dir := scratch.Dir(t)
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		scratch.File(t, path, text, 0o600)
		return path
	}
	good := file("good.yaml", "memlock: 16Gi")
	if p, err := Load(good); err != nil || p.Config().Memlock != "16Gi" {
		t.Errorf("a good file gives %v, %v", p, err)
	}
	link := filepath.Join(dir, "link.yaml")
	must.Succeed(t, os.Symlink(good, link))
	if _, err := Load(link); err != nil { // as a ConfigMap is mounted
		t.Errorf("a link to a good file is refused: %v", err)
	}
	fifo := filepath.Join(dir, "fifo")
	must.Succeed(t, unix.Mkfifo(fifo, 0o600))
	for path, want := range map[string]string{
		filepath.Join(dir, "none.yaml"): "cannot read the configuration: stat DIR/none.yaml: no such file or directory",
		dir:                             "DIR is not a regular file: expected a YAML configuration",
		fifo:                            "DIR/fifo is not a regular file: expected a YAML configuration",
		file("large.yaml", strings.Repeat("#", maxConfigSize+
			1)): "DIR/large.yaml is larger than 1048576 bytes: expected a YAML configuration",
		file("bad.yaml", "memlok: 1Gi"): `DIR/bad.yaml: unknown field "memlok"`,
		"/proc/self/mem": "cannot read the configuration: read /proc/self/mem: " +
			"input/output error",
	} {
		_, err := Load(path)
		if err == nil {
			t.Errorf("%s is taken", path)
			continue
		}
		if got := strings.ReplaceAll(err.Error(), dir, "DIR"); got != want {
			t.Errorf("%s: the error is\n%s\nwant\n%s", path, got, want)
		}
	}
}
