// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/runtimes"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/goal"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/chance"
	"github.com/rdma-spec/rdma-spec/test/testing/race"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

var histories = flag.Int("histories", 5, "how many `NUMBER` of histories TestHistoriesOfANode walks")

// askedOnce is a containerd that is asked once about the same files, in a directory that has its answers. It must be
// one that gets the files in memory, as containerd.Daemon gives them.
const askedOnce = `#!/bin/sh
[ "$1" = --version ] && echo containerd github.com/containerd/containerd/v2 vVERSION && exit
key=FOLDER/VERSION-$({ grep -v '^imports = ' "$2"; for file in $(sed -n 's/^imports = \[\(.*\)\]$/\1/p' "$2" | tr -d "\"',"); do
	echo "-- file"; cat "$file"; done; } | sha256sum | cut -c1-32)
[ -e "$key" ] || { PROGRAM "$@" >"$key.out.$$" 2>"$key.err.$$"; echo $? >"$key.$$"; mv "$key.out.$$" "$key.out"
	mv "$key.err.$$" "$key.err"; mv "$key.$$" "$key"; }
cat "$key.err" >&2; cat "$key.out"; exit "$(cat "$key")"
`

// remembered returns a containerd that was built for the node of the tests and is asked once about the same files.
func remembered(t *testing.T, dir, version string) (program string) {
	t.Helper()
	program = filepath.Join(dir, "containerd-"+version)
	named := strings.NewReplacer("VERSION", version, "FOLDER", dir, "PROGRAM", repository.Containerd(t, version))
	scratch.File(t, program, named.Replace(askedOnce), 0o755)
	return program
}

// history is a node that is configured, upgraded, and written to by other tools, one after another.
type history struct {
	caseNode
	random  *rand.Rand
	asked   map[string]string // the arguments of features that are configured, by feature
	version string            // that is installed
	theirs  string            // the root file as it was, "" once another tool has written it
	log     []string          // what was done
}

func (h *history) errorf(format string, args ...any) {
	h.Helper()
	text, _ := os.ReadFile(h.config()) // it may not exist
	h.Errorf("%s\nafter:\n%s\n%s:\n%s", fmt.Sprintf(format, args...), strings.Join(h.log, "\n"), h.config(), text)
}

func (h *history) config() string { return filepath.Join(h.root, "etc/containerd/config.toml") }

func (h *history) pick(of ...string) string { return of[h.random.IntN(len(of))] }

// rewrite has another tool write the root file.
func (h *history) rewrite(tool string) {
	h.Helper()
	h.theirs = ""
	if flags, isToolkit := strings.CutPrefix(tool, "the toolkit "); isToolkit {
		toolkit(h.T, h.root, repository.Containerd(h.T, h.version), strings.Fields(flags)...)
		return
	}
	text := []byte(scratch.Read(h.T, h.config()))
	tree, err := tomledit.Parse(text)
	if err != nil {
		h.Fatal(err)
	}
	plugin := []string{"plugins", "io.containerd.grpc.v1.cri", "containerd"}
	switch tool {
	case "nvidia-ctk": // adds its handler, and writes every line anew
		tomledit.Put(tree, map[string]any{"runtime_type": "io.containerd.runc.v2", "options": map[string]any{
			"BinaryName": "/usr/bin/nvidia-container-runtime"}}, append(plugin, "runtimes", "nvidia")...)
	case "a TOML library":
	case "SystemdCgroup": // as kubeadm's instructions say
		now, _ := tomledit.Lookup(tree, append(plugin, "runtimes", "runc", "options", "SystemdCgroup")...)
		tomledit.Put(tree, "io.containerd.runc.v2", append(plugin, "runtimes", "runc", "runtime_type")...)
		tomledit.Put(tree, now != true, append(plugin, "runtimes", "runc", "options", "SystemdCgroup")...)
	case "Ansible": // has a template of the whole file
		text = []byte(h.pick(roots...))
	case "Ansible without nvidia":
		text = []byte(roots[1])
	case "imports": // the toolkit's own directory instead
		tree["imports"] = []any{h.pick("/etc/containerd/config.d/*.toml", "/etc/containerd/conf.d/*.toml")}
	case "no imports":
		delete(tree, "imports")
	case "a missing import":
		imports, _ := tree["imports"].([]any)
		tree["imports"] = append(imports, "/etc/containerd/gone.toml")
	}
	if !strings.HasPrefix(tool, "Ansible") {
		if text, err = toml.Marshal(tree); err != nil {
			h.Fatal(err)
		}
	}
	scratch.File(h.T, h.config(), string(text), 0o600)
}

// roots are root files that all versions read.
var roots = []string{
	"version = 2\n",
	"version = 2\n[plugins.\"io.containerd.nri.v1.nri\"]\n  disable = true # not yet\n",
	`version = 2
imports = ["/etc/containerd/conf.d/*.toml"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.example/pause:3.9"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = true
`,
	"version = 2\nplugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc = { runtime_type = \"io.containerd.runc.v2\" }\n",
}

// configure runs the command for a feature, and returns whether it is as asked then.
func (h *history) configure(args string) bool {
	h.Helper()
	got := h.call(args)
	if got.Status == 0 {
		return true
	}
	if byHand := "# Make this change manually."; got.Status == 3 && strings.HasPrefix(got.Stdout, byHand) &&
		h.version == "1.7.35" && strings.HasSuffix(args, "--in-place") { // the file has the handler's table
		h.log = append(h.log, "  by hand: "+strings.TrimSpace(got.Stderr))
		return false
	}
	for _, refusal := range []string{
		`has no handler "`,                             // its model is gone
		"has no runtime_type, so its pods",             // what is left of its model is its base spec, which is ours
		"already has a handler",                        // somebody else's
		"no validator for required plugins",            // in 1.7
		"already exists, and a block cannot extend it", // what a person has to do
		"ignores the CRI settings of the file",         // that has the model
		"convert the file to version",                  // the toolkit's file, since containerd is older
	} {
		if got.Status == 3 && strings.Contains(got.Stderr, refusal) && strings.Count(got.Stderr, "\n") == 1 {
			h.log = append(h.log, "  "+strings.TrimSpace(got.Stderr))
			return false
		}
	}
	h.errorf("configure %s: %+v", args, got)
	return false
}

// met reports whether a feature is as it was asked for, by the effective configuration, and by that without our files,
// which may harm what a handler is like.
func met(tree, without map[string]any, feature, args string) bool {
	if feature == "nri" {
		nri, _ := tomledit.Lookup(tree, "plugins", containerd.NRIPlugin)
		table, _ := nri.(map[string]any)
		validator, _ := tomledit.Lookup(table, "default_validator", "enable")
		return table["disable"] == false && table["disable_connections"] == false &&
			(!strings.Contains(args, "--required") || validator == true)
	}
	_, all := containerd.Handlers(tree)
	_, models := containerd.Handlers(without)
	name := strings.Fields(args)[1]
	made, _ := all[name].(map[string]any)
	spec := "/etc/containerd/rdma-spec-" + name + ".json"
	_, like, isLike := strings.Cut(args, "--like ")
	model, exists := models[like].(map[string]any)
	if !isLike || !exists { // in place; or what it is like is gone, and it stays as it is
		return made[containerd.BaseSpecKey] == spec
	}
	want := tomledit.Clone(model)
	want[containerd.BaseSpecKey] = spec
	return cmp.Equal(goal.NotZero(want), goal.NotZero(made))
}

// check compares what goal.Read finds no longer in effect with the effective configuration, and with that of the node
// after a revert.
func (h *history) check() {
	h.Helper()
	tree, err := h.effective()
	without := h.reverted()
	if h.Failed() || without == nil {
		return
	}
	if slices.ContainsFunc(kept(h.T, h.root), func(f doctor.Finding) bool { return f.Status == doctor.Skipped }) {
		return // containerd ignores some of the files, and the doctor says that instead
	}
	found := unmet(h.T, h.root)
	for feature, args := range h.asked {
		is := slices.Contains(found, feature+": lost") || slices.Contains(found, feature+": stale")
		if want := err == nil && !met(tree, without, feature, args); is != want && feature != "handler runc" {
			h.errorf("%s: found no longer in effect: %t, and by containerd: %t, %v: %q", feature, is, want, err, found)
		}
	}
	is := slices.ContainsFunc(found, func(f string) bool { return strings.HasPrefix(f, "side effects: ") })
	if want := err == nil && h.harms(tree, without); is != want {
		h.errorf("found side effects: %t, and by a revert: %t: %q", is, want, found)
	}
}

// reverted returns what revert returns of a copy of the node.
func (h *history) reverted() map[string]any {
	h.Helper()
	reverted := history{caseNode: caseNode{h.T, scratch.Dir(h.T), h.dir}, log: h.log, asked: map[string]string{}}
	if err := os.CopyFS(reverted.root, os.DirFS(h.root)); err != nil {
		h.Fatal(err)
	}
	return reverted.revert("")
}

// harms reports whether the files of ours change more of an effective configuration than they are for: after a revert,
// it differs by more.
func (h *history) harms(tree, without map[string]any) bool {
	h.Helper()
	for _, path := range tomledit.Differences(without, tree) {
		i := slices.Index(path, "runtimes")
		switch {
		case slices.Contains(path, containerd.NRIPlugin) && h.asked["nri"] != "":
		case i < 0:
			return true
		default:
			value, _ := tomledit.Lookup(tree, path...)
			before, _ := tomledit.Lookup(without, path...)
			args := h.asked["handler "+path[i+1]]
			its := args != "" && (!strings.Contains(args, "--in-place") || path[len(path)-1] == containerd.BaseSpecKey)
			if !its && (!isZero(value) || !isZero(before)) {
				return true
			}
		}
	}
	return false
}

// isZero reports whether there is no value, or a zero.
func isZero(value any) bool { return value == nil || len(goal.NotZero(map[string]any{"": value})) == 0 }

// revert reverts features, all where none is named, checks that nothing is left of them, and returns the effective
// configuration then: nil where another tool has copied what would go, or written what containerd does not read.
func (h *history) revert(feature string) (without map[string]any) {
	h.Helper()
	before, _ := h.effective() // nil where containerd does not read what another tool has written
	got := h.call(feature + " --revert")
	if got.Status == 3 && strings.Contains(got.Stderr, "without which containerd's CRI plugin "+
		"does not load") { // the toolkit copied it
		h.log = append(h.log, "  "+strings.TrimSpace(got.Stderr))
		if feature == "" {
			maps.DeleteFunc(h.asked, func(other, _ string) bool {
				return !strings.Contains(got.Stderr, "/rdma-spec-"+strings.TrimPrefix(other, "handler ")+".json")
			})
		}
		return nil
	}
	if got.Status != 0 {
		h.errorf("%s --revert: %+v", feature, got)
		return nil
	}
	if delete(h.asked, feature); feature == "" {
		clear(h.asked)
	}
	without, err := h.effective()
	if err != nil {
		if before != nil {
			h.errorf("reverted: %v", err)
		}
		return nil
	}
	_, handlers := containerd.Handlers(without)
	_, others := containerd.Handlers(before)
	for name, handler := range others {
		table := goal.NotZero(handler.(map[string]any)) // containerd prints a table
		delete(table, containerd.BaseSpecKey)           // which can be all that is there, and ours
		if _, stays := handlers[name]; !stays && len(table) > 0 && !strings.HasPrefix(name, "rdma") {
			h.errorf("reverted: the handler %s is gone, which others have", name)
		}
	}
	for name, handler := range handlers {
		table, _ := handler.(map[string]any)
		spec, _ := table[containerd.BaseSpecKey].(string)
		ours := strings.HasPrefix(spec, "/etc/containerd/rdma-spec-") || strings.HasPrefix(name, "rdma")
		owner := "handler " + name
		if _, asked := h.asked[owner]; ours && !asked && feature == "" {
			h.errorf("reverted: the handler %s is left: %v", name, table)
		}
	}
	if feature != "" {
		return without
	}
	for file := range nodeFiles(h.T, h.root) {
		if strings.Contains(filepath.Base(file), "rdma-spec") {
			h.errorf("reverted: %s is left", file)
		}
	}
	if text, _ := os.ReadFile(h.config()); strings.Contains(string(text), "rdma-spec") {
		h.errorf("reverted: something of ours is left")
	} else if h.theirs != "" && string(text) != h.theirs {
		h.errorf("reverted: the file is not what it was")
	}
	return without
}

// step does one thing to the node, by chance.
func (h *history) step() {
	h.Helper()
	said := func(format string, args ...any) { h.log = append(h.log, fmt.Sprintf(format, args...)) }
	switch n := h.random.IntN(20); {
	case n < 6:
		args := h.pick("nri", "nri", "nri --required", "handler rdma --like runc", "handler rdma --like runc",
			"handler rdma-nvidia --like nvidia", "handler runc --in-place", "handler rdma --like nvidia")
		said("configure %s", args)
		if h.configure(args) {
			h.asked[featureOf(args)] = args
		}
	case n < 10:
		version := h.pick("1.7.35", "2.2.9", "2.4.2")
		said("containerd %s", version)
		h.use(version)
	case n < 15:
		tool := h.pick("nvidia-ctk", "a TOML library", "SystemdCgroup", "Ansible", "imports", "no imports",
			"the toolkit --config-source file", "the toolkit --config-source command --set-as-default")
		if _, err := h.effective(); err != nil && (tool == "imports" || strings.HasPrefix(tool, "the toolkit")) {
			return
		}
		said("another tool: %s", tool)
		h.rewrite(tool)
	case n < 18:
		for _, feature := range h.features() {
			said("again: configure %s", h.asked[feature])
			if args := h.asked[feature]; h.configure(args) {
				without := h.reverted()
				if tree, err := h.effective(); err != nil || without != nil && !met(tree, without, feature, args) {
					h.errorf("configure %s has not made it so: %v", args, err)
				}
				if got := h.call(args + " --dry-run"); got.Status != 0 || got.Stdout != "" {
					h.errorf("configure %s, at once again: %+v", args, got)
				}
			}
		}
	default:
		feature := ""
		if all := h.features(); len(all) > 0 && n == 18 {
			feature = h.pick(all...)
		}
		said("revert %s", feature)
		h.revert(feature)
	}
}

func (h *history) features() (all []string) {
	for feature := range h.asked {
		all = append(all, feature)
	}
	slices.Sort(all)
	return all
}

func featureOf(args string) string {
	if words := strings.Fields(args); words[0] == "handler" {
		return strings.Join(words[:2], " ")
	}
	return "nri"
}

// missingImport has the root file name a file that does not exist: containerd prints its configuration all the same,
// and does not start. What is said of the node is why.
func (h *history) missingImport() {
	h.Helper()
	before := scratch.Read(h.T, h.config())
	h.log = append(h.log, "a missing import")
	h.rewrite("a missing import")
	if _, err := h.effective(); err == nil || !strings.Contains(err.Error(), "imports /etc/containerd/gone.toml, which does "+
		"not exist, so containerd does not start") {
		h.errorf("a missing import: %v", err)
	}
	found, _, err := doctor.Diagnose(h.Context(), node.Options{Root: h.root, Timeout: node.Daemons}, runtimes.Checks(),
		[]string{"runtime-config"}, io.Discard)
	if err != nil || !slices.ContainsFunc(found, func(f doctor.Finding) bool {
		return f.Check == "runtime-config" && f.Status == doctor.Wrong && strings.Contains(f.Text, "gone.toml")
	}) {
		h.errorf("the doctor does not find the missing import: %v, %+v", err, found)
	}
	log, ended := started(h.T, repository.Containerd(h.T, h.version), copyOf(h.T, h.root))
	const ends = "containerd without a file that it imports ends"
	if err := await.Receive(h.T, await.Timeout, ends, ended); err == nil ||
		!strings.Contains(scratch.Read(h.T, log), "gone.toml") {
		h.errorf("containerd %s started: %v, %s", h.version, err, scratch.Read(h.T, log))
	}
	scratch.File(h.T, h.config(), before, 0o600)
}

// use installs a version of containerd.
func (h *history) use(version string) {
	h.Helper()
	h.version = version
	h.caseNode.use(version)
}

// A containerd that is rolled back cannot do all that was asked of a later one: that hinders no other feature.
func TestHistoriesOfANode_known(t *testing.T) {
	dir := scratch.Dir(t)
	type step struct{ version, args string } // also "tool NAME", "revert FEATURE"; "": what was configured last is reverted
	for name, steps := range map[string][]step{
		"rolled back, and upgraded again": {{"2.2.9", "nri --required"}, {"1.7.35", "handler rdma --like runc"},
			{"2.2.9", "nri --required"}},
		"rolled back, and one feature reverted": {{"2.2.9", "nri --required"}, {"2.2.9", "nri"},
			{"1.7.35", "handler rdma --like runc"}, {"1.7.35", ""}},
		"rolled back to where the model of a handler is gone": {{"2.2.9", "tool nvidia-ctk"},
			{"2.2.9", "handler rdma --like runc"}, {"1.7.35", "nri"}},
		"rolled back to where a file of the toolkit is too new": {{"2.2.9", "tool the toolkit --config-source file"},
			{"2.2.9", "handler rdma --like nvidia"}, {"2.4.2", "nri"}, {"1.7.35", "tool a TOML library"}},
		// containerd 1.7 forgets its own handler where a file has any, so it is written beside ours, and is needed beside
		// theirs.
		"in place, and another's handler later": {{"1.7.35", "handler runc --in-place"}, {"1.7.35", "tool nvidia-ctk"},
			{"1.7.35", ""}},
		"made like the built-in one, and another's handler later": {{"1.7.35", "handler rdma --like runc"},
			{"1.7.35", "tool nvidia-ctk"}, {"1.7.35", ""}},
		// The directory of our files is imported no longer, and one of them is for what is not there.
		"a handler whose model is gone, and an import": {{"2.2.9", "tool nvidia-ctk"}, {"2.2.9", "handler rdma --like nvidia"},
			{"2.2.9", "tool Ansible without nvidia"}, {"2.2.9", "nri"}, {"2.2.9", "revert "}},
		"one of two handlers reverted, and the other": {{"1.7.35", "handler rdma --like runc"},
			{"1.7.35", "handler rdma-b --like runc"}, {"1.7.35", "revert handler rdma"}, {"1.7.35", "revert "}},
	} {
		for i, text := range roots {
			t.Run(fmt.Sprint(name, i), func(t *testing.T) {
				root, _ := configureNode(t)
				h := &history{caseNode: caseNode{t, root, dir}, asked: map[string]string{}, theirs: text}
				scratch.File(t, h.config(), text, 0o600)
				last := ""
				for _, s := range steps {
					h.use(s.version)
					h.log = append(h.log, s.version+", configure "+s.args)
					if tool, isTool := strings.CutPrefix(s.args, "tool "); isTool {
						h.rewrite(tool)
					} else if feature, isRevert := strings.CutPrefix(s.args, "revert "); isRevert {
						h.revert(feature)
					} else if s.args == "" {
						h.revert(last)
					} else if h.configure(s.args) {
						last = featureOf(s.args)
						h.asked[last] = s.args
					}
					h.check()
				}
			})
		}
	}
}

// Whatever happens to a node, goal.Read says what is no longer in effect, as containerd does, and a revert leaves nothing
// of ours.
func TestHistoriesOfANode(t *testing.T) {
	if race.Detector {
		t.Skip("runs containerd hundreds of times, and the race detector does not see it")
	}
	random, dir := chance.New(t), scratch.Dir(t)
	for i := range *histories {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			root, _ := configureNode(t)
			h := &history{caseNode: caseNode{t, root, dir}, random: random, asked: map[string]string{}}
			h.use(h.pick("1.7.35", "2.2.9", "2.4.2"))
			h.theirs = h.pick(roots...)
			scratch.File(t, h.config(), h.theirs, 0o600)
			for n := range 10 {
				if i == 0 && n == 5 {
					h.missingImport()
				}
				if h.step(); t.Failed() {
					return
				}
				if h.check(); t.Failed() {
					return
				}
			}
			h.log = append(h.log, "revert")
			h.revert("")
		})
	}
}
