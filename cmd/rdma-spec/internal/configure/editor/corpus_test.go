// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package editor

import (
	"context"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/goal"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/record"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/race"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// runsContainerd skips a test that runs an installed containerd again and again, where that shows nothing.
func runsContainerd(t *testing.T) {
	t.Helper()
	if race.Detector {
		t.Skip("runs containerd hundreds of times, and the race detector does not see it")
	}
}

// remembering is a containerd that is run once for the same files.
type remembering struct {
	containerd.Binary
	answers map[string][]byte
}

func (r remembering) Version(ctx context.Context) (string, error) {
	version, known := r.answers["version"]
	if known {
		return string(version), nil
	}
	answer, err := r.Binary.Version(ctx)
	r.answers["version"] = []byte(answer)
	return answer, err
}

func (r remembering) Dump(ctx context.Context, file string) ([]byte, error) {
	files, err := containerd.Daemon{Config: file}.Files(ctx, nil)
	if err != nil {
		return r.Binary.Dump(ctx, file)
	}
	key := ""
	for _, f := range files {
		key += "\x00" + string(f.Text)
	}
	answer, known := r.answers[key]
	if !known {
		if answer, err = r.Binary.Dump(ctx, file); err == nil {
			r.answers[key] = answer
		}
	}
	return answer, err
}

// node is a directory with a containerd's configuration.
type node struct {
	root   string
	daemon containerd.Daemon
	before map[string]string
}

// newNode puts a configuration of the corpus, VERSION/NAME, into a directory as the platform that its name begins with
// does.
func newNode(t *testing.T, name string) node {
	t.Helper()
	n := node{root: scratch.Dir(t)}
	version, config, _ := strings.Cut(name, "/")
	etc := filepath.Join(n.root, "etc/containerd")
	n.daemon = containerd.Daemon{Name: "containerd", Config: filepath.Join(etc, "config.toml"),
		Program: remembering{containerd.Binary(repository.Containerd(t, version)), map[string][]byte{}}}
	platform, _, _ := strings.Cut(config, "-")
	switch platform {
	case "k3s", "rke2":
		n.daemon.Template = filepath.Join(etc, "config-v3.toml.tmpl")
	case "k0s":
		n.daemon.DropIns = filepath.Join(n.root, "etc/k0s/containerd.d")
	}
	files, err := filepath.Glob(filepath.Join("testdata", name+".conf.d", "*"))
	if err != nil {
		t.Fatal(err)
	}
	copyTo := func(from, to string) {
		if !strings.HasSuffix(name, "/missing") {
			scratch.File(t, to, strings.NewReplacer(`"/etc/containerd/`, `"`+etc+"/", `'/etc/containerd/`, `'`+etc+
				"/").Replace(scratch.Read(t, from)), 0o600)
		}
	}
	copyTo(filepath.Join("testdata", name+".toml"), n.daemon.File())
	for _, file := range files {
		copyTo(file, filepath.Join(etc, "conf.d", filepath.Base(file)))
	}
	for _, spec := range []string{"base-runtime-spec.json", "cri-base.json"} {
		if containerd.Exists(n.daemon.File()) && strings.Contains(scratch.Read(t, n.daemon.File()), spec) {
			scratch.File(t, filepath.Join(etc, spec), `{"ociVersion":"1.1.0","linux":{}}`, 0o600)
		}
	}
	n.before = n.files(t)
	return n
}

// files returns all files of the node.
func (n node) files(t *testing.T) map[string]string {
	t.Helper()
	if !containerd.Exists(filepath.Join(n.root, "etc")) {
		return nil
	}
	return scratch.Tree(t, filepath.Join(n.root, "etc"))
}

// name is that of a file of the node in files.
func (n node) name(file string) string {
	return strings.TrimPrefix(file, filepath.Join(n.root, "etc")+"/")
}

// withoutRoot returns a text in which the node's files are those of a real one.
func (n node) withoutRoot(text string) string { return strings.ReplaceAll(text, n.root, "") }

// configurations are the names of all configurations of the corpus: those that platforms ship, and odd ones.
func configurations(t *testing.T) (names []string) {
	t.Helper()
	files, err := filepath.Glob("testdata/*/*.toml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		names = append(names, strings.TrimSuffix(strings.TrimPrefix(file, "testdata/"), ".toml"))
	}
	names = append(names, "1.7/missing", "2.2/missing", "2.4/missing")
	if len(names) < 40 {
		t.Fatalf("%d configurations, want more", len(names))
	}
	return names
}

// In every configuration, the change is the golden one, no more is in effect, a second run and a revert change nothing.
func TestNRI(t *testing.T) {
	runsContainerd(t)
	for _, name := range configurations(t) {
		for _, required := range []bool{false, true} {
			kind := "nri"
			if required {
				kind = "required"
				if strings.HasPrefix(name, "1.") && name != "1.7/default" {
					continue // they are all refused
				}
			}
			t.Run(name+"/"+kind, func(t *testing.T) {
				n := newNode(t, name)
				nri := func() (change.Plan, error) { return ofNRI(n.daemon, required).NRI(t.Context()) }
				n.applied(t, name+"."+kind, nri, func(effective map[string]any) {
					tomledit.Put(effective, false, "plugins", containerd.NRIPlugin, "disable")
					tomledit.Put(effective, false, "plugins", containerd.NRIPlugin, "disable_connections")
					if required {
						tomledit.Put(effective, true, "plugins", containerd.NRIPlugin, "default_validator", "enable")
					}
				})
			})
		}
	}
}

// applied compares a plan with a golden one, applies it and reverts it, and checks the node's files and what is in
// effect.
func (n node) applied(t *testing.T, name string, planned func() (change.Plan, error), want func(effective map[string]any)) {
	t.Helper()
	plan, err := planned()
	text := plan.Diff()
	if err != nil {
		text = "error: " + err.Error() + "\n"
	}
	golden.Compare(t, filepath.Join("testdata", name+".golden"), n.withoutRoot(text))
	if err != nil {
		return
	}
	before := n.effective(t)
	ledger, err := change.Open(n.root)
	if err != nil {
		t.Fatal(err)
	}
	defer ledger.Close()
	if err := ledger.Apply(plan, nil, record.Goal{Feature: "test"}); err != nil {
		t.Fatal(err)
	}
	if diff := changes(t, planned); diff != "" {
		t.Errorf("a second run before the restart:\n%s", diff)
	}
	n.render(t)
	want(before)
	after := n.effective(t)
	for _, tree := range []map[string]any{before, after} { // whether options say 0 or nothing is the same
		if plugin, all := containerd.Handlers(tree); plugin != "" {
			tomledit.Put(tree, goal.NotZero(all), "plugins", plugin, "containerd", "runtimes")
		}
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("the effective configuration (-want +got):\n%s", diff)
	}
	if diff := changes(t, planned); diff != "" {
		t.Errorf("a second run:\n%s", diff)
	}
	n.unrender(t)
	back, err := ledger.Reversal(ledger.Features()...)
	if err == nil {
		err = ledger.Revert(back, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(n.before, n.files(t)); diff != "" {
		t.Errorf("reverted files (-before +after):\n%s", diff)
	}
}

// effective returns what containerd makes of the node's own files. A missing one is as an empty one.
func (n node) effective(t *testing.T) map[string]any {
	t.Helper()
	file := n.daemon.File()
	if !containerd.Exists(file) {
		file = filepath.Join(scratch.Dir(t), "config.toml")
		scratch.File(t, file, "", 0o600)
	}
	tree, err := n.daemon.Dump(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// render does what the platform does when it starts: K3s makes the configuration of the template, and k0s names its
// drop-ins.
func (n node) render(t *testing.T) {
	t.Helper()
	text := n.before[n.name(n.daemon.File())]
	templates, err := filepath.Glob(filepath.Join(filepath.Dir(n.daemon.File()), "*.tmpl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range templates {
		added, extends := strings.CutPrefix(scratch.Read(t, file), containerd.DefaultTemplate)
		if !extends {
			t.Fatalf("%s does not extend the platform's configuration:\n%s", file, added)
		}
		text += added
	}
	if n.daemon.DropIns != "" {
		named, err := tomledit.Add([]byte(text), filepath.Join(n.daemon.DropIns, "*.toml"), "imports")
		if err != nil {
			t.Fatal(err)
		}
		text = string(named)
	}
	if len(templates) > 0 || n.daemon.DropIns != "" {
		scratch.File(t, n.daemon.File(), text, 0o600)
	}
}

// unrender takes back what the platform has rendered.
func (n node) unrender(t *testing.T) {
	t.Helper()
	if text, existed := n.before[n.name(n.daemon.File())]; existed && (n.daemon.Template != "" || n.daemon.DropIns != "") {
		scratch.File(t, n.daemon.File(), text, 0o600)
	}
}

// ofNRI returns the editor for NRI.
func ofNRI(d containerd.Daemon, required bool) Editor {
	return editorFor(d, goal.NRI, map[string]string{goal.Required: strconv.FormatBool(required)})
}

// ofHandler returns the editor for a handler.
func ofHandler(d containerd.Daemon, name, like string) Editor {
	return editorFor(d, goal.Handler+name, map[string]string{goal.Like: like})
}

func editorFor(d containerd.Daemon, feature string, asked map[string]string) Editor {
	version, _ := d.Program.Version(context.Background()) // the plan says why there is none
	return Editor{Daemon: d, Goal: record.Goal{Feature: feature, Config: d.Config, Version: version, Asked: asked}}
}
