// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/test/testing/repository"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

func TestMain(m *testing.M) { repository.Main(m) }

// marks are what the commands of a block need and a unit test does not have. A block without a mark is run. The
// expression is for commands that justify the mark.
var marks = map[string]*regexp.Regexp{
	"cluster": regexp.MustCompile(`^(kubectl|helm|podman|cosign) |\| kubectl `),
	"node":    regexp.MustCompile(`^(systemctl|journalctl|curl|install|rm|dpkg|nri-rdma|docker|nerdctl|mlxconfig|ip|ansible-playbook) |^(rdma-spec (devices|status|repair|doctor|collect|configure|cdi)|bin/rdma-spec)\b`),
	"build":   regexp.MustCompile(`^(make|go|git|bin/rdma-node) `),
}

// problem returns what is wrong with a block's mark.
func (b block) problem() error {
	justifies, known := marks[b.mark]
	switch {
	case b.mark == "" && slices.ContainsFunc(b.lines(),
		func(line string) bool { return !strings.HasPrefix(line, "rdma-spec ") }):
		return errors.New("a test runs only rdma-spec: mark what the other commands need: cluster, node or build")
	case b.mark == "":
		return nil
	case !known:
		return fmt.Errorf("the mark %q is not known: write cluster, node or build, or let the test run the block", b.mark)
	case !slices.ContainsFunc(b.lines(), justifies.MatchString):
		return fmt.Errorf("no command needs the mark %s: remove it, and the test runs the block", b.mark)
	}
	return nil
}

// lines returns a block's commands.
func (b block) lines() []string { return strings.Split(strings.TrimSpace(b.content), "\n") }

// TestCommandsInTextsRun runs each block of commands that has no mark, from the repository's top folder. Files below
// /etc are written below a temporary folder instead.
func TestCommandsInTextsRun(t *testing.T) {
	p, count := repository.Build(t), 0
	for _, b := range blocks(t) {
		if b.language != "sh" {
			continue
		}
		if err := b.problem(); err != nil {
			t.Errorf("%s: %v:\n%s", b.file, err, b.content)
			continue
		}
		if b.mark != "" {
			continue
		}
		count++
		if err := run(t, p, b.content); err != nil {
			t.Errorf("%s: %v\n%s", b.file, err, b.content)
		}
	}
	if count < 5 {
		t.Errorf("%d blocks run, want more: are the blocks still marked sh?", count)
	}
}

// run runs a block of commands from the repository's top folder.
func run(t *testing.T, p repository.Programs, commands string) error {
	t.Helper()
	folder := scratch.Folder(t)
	for _, file := range regexp.MustCompile(` (/etc/\S+)`).FindAllStringSubmatch(commands, -1) {
		if err := os.MkdirAll(filepath.Join(folder, filepath.Dir(file[1])), 0o755); err != nil {
			return err
		}
	}
	cmd := exec.Command("sh", "-e", "-c", strings.ReplaceAll(commands, " /etc/", " "+folder+"/etc/"))
	cmd.Dir, cmd.Env = repository.Path(t, "."), append(os.Environ(), "PATH="+p.Folder+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// TestCommandsInTextsExist checks what can be checked of each command without running it: subcommands, flags, files,
// targets, tests, and names in the cluster.
func TestCommandsInTextsExist(t *testing.T) {
	c, count := checker{t: t, Programs: repository.Build(t), makefile: repository.Read(t, "Makefile")}, 0
	check := func(file, line string) {
		count++
		for _, problem := range c.problems(line) {
			t.Errorf("%s: %q: %s", file, line, problem)
		}
	}
	for _, b := range blocks(t) {
		for _, line := range b.lines() {
			switch typed, isTyped := strings.CutPrefix(line, "$ "); {
			case b.language == "sh":
				check(b.file, line)
			case b.language == "console" && isTyped:
				check(b.file, typed)
			}
		}
	}
	inline := regexp.MustCompile("`((?:rdma-spec|nri-rdma|make|bin/rdma-node|kubectl) [^`\n]*)`")
	for _, file := range texts(t) {
		for _, found := range inline.FindAllStringSubmatch(repository.Read(t, file), -1) {
			check(file, found[1])
		}
	}
	if count < 50 {
		t.Errorf("%d commands found, want more", count)
	}
}

type checker struct {
	repository.Programs
	t        *testing.T
	makefile string
}

// fixed are the names of objects in the cluster and on the node, behind the words that precede them.
var fixed = regexp.MustCompile(`(?:-n (\S+)|daemonset[ /](\S+)|-c (\S+)|systemctl (?:restart|(?:en|dis)able --now) (\S+))`)

// Names of objects in the cluster: of namespaces the plugin's, those of pods in examples, and those of device plugins.
var (
	namespaces = []string{"rdma-spec", "guests", "ml", "kube-system", "nvidia-network-operator", "spiderpool"}
	daemonSets = []string{"", "nri-rdma", "rdma-shared-dp-ds", "spiderpool-rdma-shared-device-plugin", "calico-node"}
	containers = []string{"", "nri-rdma", "wait-for-nri-rdma"}
)

func (c checker) problems(line string) (all []string) {
	if _, problem := c.Check(line); problem != "" {
		all = append(all, problem)
	}
	words := strings.Fields(strings.NewReplacer("'", "", `"`, "", "^", "", "$ ", " ").Replace(line + " "))
	for i, word := range words {
		word = strings.TrimSuffix(word, "$")
		var err error
		switch value, isTest := strings.CutPrefix(word, "TEST="); {
		case isTest:
			err = declared(c.t, "test/e2e", value)
		case words[0] == "make" && i > 0 && !strings.Contains(word, "=") &&
			!regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(word)+`:`).MatchString(c.makefile):
			err = errors.New("the Makefile has no target " + word)
		case i > 0 && (words[i-1] == "-run" || words[i-1] == "-fuzz") && word != "":
			err = declared(c.t, words[slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "./") })], word)
		case strings.HasPrefix(word, "deploy/") || strings.HasPrefix(word, "test/") || strings.HasPrefix(word, "./"):
			_, err = os.Stat(repository.Path(c.t, strings.TrimSuffix(word, "...")))
		}
		if err != nil {
			all = append(all, err.Error())
		}
	}
	before, _, _ := strings.Cut(line, " -- ") // what follows runs in a container
	for _, found := range fixed.FindAllStringSubmatch(before, -1) {
		namespace, daemonSet, container, unit := found[1], found[2], found[3], found[4]
		if filepath.Ext(unit) == "" {
			unit += ".service"
		}
		_, noUnit := os.Stat(repository.Path(c.t, "deploy/systemd/"+unit))
		switch {
		case !strings.HasPrefix(line, "kubectl") && unit == ".service":
		case namespace != "" && !slices.Contains(namespaces, namespace), !slices.Contains(daemonSets, daemonSet),
			!slices.Contains(containers, container), unit != ".service" && unit != "containerd.service" && unit != "crio.service" && noUnit != nil:
			all = append(all, found[0]+" does not exist")
		}
	}
	return all
}

// declared reports whether the test files of a package declare a test or fuzz target.
func declared(t *testing.T, folder, name string) error {
	files, err := filepath.Glob(repository.Path(t, filepath.Join(folder, "*_test.go")))
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if strings.Contains(string(text), "\nfunc "+name) {
			return nil
		}
	}
	return fmt.Errorf("%s has no test %s", folder, name)
}

// TestPlaybooks: each command of rdma-spec in them exists.
func TestPlaybooks(t *testing.T) {
	p, checked := repository.Build(t), 0
	files, err := filepath.Glob(repository.Path(t, "deploy/ansible/*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		var plays []struct {
			Tasks []struct {
				Command string `json:"ansible.builtin.command"`
			} `json:"tasks"`
		}
		if err := yaml.Unmarshal([]byte(repository.Read(t, file)), &plays); err != nil {
			t.Fatal(err)
		}
		for _, play := range plays {
			for _, task := range play.Tasks {
				ours, problem := p.Check(task.Command)
				if problem != "" {
					t.Errorf("%s: %s", file, problem)
				}
				if ours {
					checked++
				}
			}
		}
	}
	if checked != 2 {
		t.Errorf("%d commands checked, want 2", checked)
	}
}
