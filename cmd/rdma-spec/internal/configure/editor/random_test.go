// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package editor

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/pelletier/go-toml/v2"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/goal"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/record"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/test/testing/chance"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// loader loads configurations as containerd does: 2.x merges what a file imports, and in 1.x an imported section
// replaces the section.
type loader string

func (l loader) Version(context.Context) (string, error) { return string(l), nil }

func (l loader) Dump(_ context.Context, file string) ([]byte, error) {
	tree, err := l.load(file)
	if err != nil {
		return nil, err
	}
	tree["version"] = int64(2) // containerd prints its own
	for key, value := range map[string]any{"disable": true, "disable_connections": false,
		"socket_path": "/var/run/nri/nri.sock"} {
		if _, said := tomledit.Lookup(tree, "plugins", containerd.NRIPlugin, key); !said {
			tomledit.Put(tree, value, "plugins", containerd.NRIPlugin, key)
		}
	}
	return toml.Marshal(tree)
}

func (l loader) load(file string) (map[string]any, error) {
	files, err := containerd.Daemon{Config: file}.Files(context.Background(), nil)
	tree := map[string]any{}
	for i, f := range files {
		text, parseErr := tomledit.Parse(f.Text)
		if parseErr != nil {
			return nil, parseErr
		}
		if i > 0 {
			delete(text, "version")
			l.merge(tree, text, 0)
			continue
		}
		tree = text
	}
	return tree, err
}

func (l loader) merge(into, from map[string]any, depth int) {
	for key, value := range from {
		old, isOld := into[key].(map[string]any)
		table, isTable := value.(map[string]any)
		if isOld && isTable && (depth == 0 || !strings.HasPrefix(string(l), "1.")) {
			l.merge(old, table, depth+1)
			continue
		}
		into[key] = value
	}
}

// In random documents, what is in effect is the same but for our keys, and a revert gives the bytes.
func TestNRIInRandomConfigurations(t *testing.T) {
	random := chance.New(t)
	changed := 0
	for i := range 1000 {
		version := []loader{"1.7.35", "2.4.2"}[i%2]
		d := containerd.Daemon{Name: "containerd", Config: filepath.Join(scratch.Folder(t), "config.toml"), Program: version}
		text := randomConfiguration(random)
		if _, err := tomledit.Parse(text); err != nil {
			continue // a table written twice
		}
		scratch.File(t, d.File(), string(text), 0o600)
		before, err := d.Effective(t.Context(), containerd.Contents{})
		if err != nil {
			continue // a value where containerd needs a table
		}
		plan, err := ofNRI(d, false).NRI(t.Context())
		if err != nil {
			t.Errorf("NRI: %v\n%s", err, text)
			continue
		}
		ledger, err := change.Open(filepath.Dir(d.File()))
		if err != nil {
			t.Fatal(err)
		}
		if err := ledger.Apply(plan, nil, record.Goal{Feature: goal.NRI}); err != nil {
			t.Fatal(err)
		}
		after, err := d.Effective(t.Context(), containerd.Contents{})
		tomledit.Put(before, false, "plugins", containerd.NRIPlugin, "disable")
		tomledit.Put(before, false, "plugins", containerd.NRIPlugin, "disable_connections")
		if diff := cmp.Diff(before, after, cmpopts.EquateNaNs()); err != nil || diff != "" {
			t.Errorf("%v (-want +got):\n%s\n%s", err, diff, text)
		}
		if again, err := ofNRI(d, false).NRI(t.Context()); err != nil || len(again) > 0 {
			t.Errorf("a second run: %v, %v\n%s", again, err, text)
		}
		back, err := ledger.Reversal("nri")
		if err == nil {
			err = ledger.Revert(back, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(d.File()); err != nil || !bytes.Equal(got, text) {
			t.Errorf("reverted: %v\n%s\nwas\n%s", err, got, text)
		}
		if left, err := filepath.Glob(filepath.Join(filepath.Dir(d.File()), "conf.d*")); err != nil || len(left) > 0 {
			t.Errorf("reverted: %v is left, %v", left, err)
		}
		ledger.Close()
		if len(plan) > 0 {
			changed++
		}
	}
	if changed < 200 {
		t.Errorf("%d configurations changed, want more", changed)
	}
}

// randomConfiguration returns a document that may be invalid because it defines a table twice.
func randomConfiguration(random *rand.Rand) []byte {
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	newline := pick("\n", "\n", "\r\n")
	plugin := func() string {
		return pick(`"`+containerd.NRIPlugin+`"`, `'`+containerd.NRIPlugin+`'`, `"io.containerd.gc.v1.scheduler"`)
	}
	value := func() string {
		return pick("true", "1", "'[x]'", `"# \" no comment"`, "[1,"+newline+" # in a list"+newline+" 2]",
			"{ a = 1, b = { c = [] } }", "'''"+newline+"[plugins]"+newline+"'''", "1.5", "07:32:00")
	}
	lines := []string{"version = 2" + pick("", " # why")}
	used := map[string]bool{}
	once := func(key string) string {
		for used[key] {
			key += "x"
		}
		used[key] = true
		return key
	}
	if random.IntN(8) == 0 {
		lines = nil
	}
	for range random.IntN(10) {
		indent := pick("", "  ", "\t")
		switch random.IntN(6) {
		case 0:
			lines = append(lines, pick("", "# comment [x] = 1", indent+"#disable = true"))
		case 1:
			lines = append(lines, indent+pick("[plugins]", "[ plugins . "+plugin()+" ]", "[plugins."+plugin()+
				".default_validator]", "[debug]", "[metrics]")+pick("", " # ]"))
		case 2:
			lines = append(lines, indent+pick("disable", "'disable'", `"disable"`)+" = "+pick("true", "false")+pick("", "# off"))
		case 3:
			lines = append(lines, fmt.Sprintf("%s%s . %s=%s", indent, once("t"), once("key"), value()))
		default:
			lines = append(lines, indent+once("key")+" = "+value()+pick("", " # why"))
		}
	}
	return []byte(strings.Join(lines, newline) + pick("", newline))
}
