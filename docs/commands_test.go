// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/test/testing/pages"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

func TestMain(m *testing.M) { repository.Main(m) }

var (
	// runsIt is the mark of a block that a test runs: its name, with those of subtests.
	runsIt = regexp.MustCompile(`^Test[A-Za-z0-9]+(/[A-Za-z0-9.]+)*$`)
	// nobodyRunsIt is the mark of one that none does: why.
	nobodyRunsIt = regexp.MustCompile(`^\(.+\)$`)
	// anywhere are commands that any machine runs.
	anywhere = regexp.MustCompile(`^rdma-spec (config|explain|generate) `)
)

// problem returns what is wrong with the mark of a block of commands, where tests has the files of the repository that
// declare each test.
func problem(b pages.Block, tests map[string]string) error {
	isOurs := func(line string) bool { return strings.HasPrefix(line, "rdma-spec ") }
	isAnywhere := func(line string) bool { return anywhere.MatchString(line) }
	switch {
	case b.Mark == "" && !everyLine(b, isOurs):
		return errors.New("the tests of docs run only rdma-spec: mark the block with the test that runs it, or (why none does)")
	case b.Mark == "":
		return nil
	case everyLine(b, isAnywhere):
		return errors.New("any machine runs it: remove its mark")
	case runsIt.MatchString(b.Mark):
		return runs(b.Mark, tests)
	case !nobodyRunsIt.MatchString(b.Mark):
		return fmt.Errorf("its mark %q is neither a test nor (a reason)", b.Mark)
	}
	for _, name := range regexp.MustCompile(`\bTest[A-Z]\w*`).FindAllString(b.Mark, -1) {
		if _, declared := tests[name]; !declared {
			return fmt.Errorf("its mark names %s, which does not exist", name)
		}
	}
	return nil
}

func everyLine(b pages.Block, holds func(string) bool) bool {
	return !slices.ContainsFunc(b.Lines(), func(line string) bool { return !holds(line) })
}

// runs returns an error unless a test runs the blocks that have its name.
func runs(mark string, tests map[string]string) error {
	name, subtests, _ := strings.Cut(mark, "/")
	file := tests[name]
	if !strings.Contains(file, "pages.Marked(") {
		return fmt.Errorf("no test %s runs the blocks that have its name", name)
	}
	for part := range strings.SplitSeq(subtests, "/") {
		if part != "" && !strings.Contains(file, `"`+part+`"`) {
			return fmt.Errorf("%s has no subtest %s", name, part)
		}
	}
	return nil
}

// declaredTests returns the text of the file that declares each test of the repository.
func declaredTests(t *testing.T) map[string]string {
	t.Helper()
	tests := map[string]string{}
	name := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	for _, dir := range []string{"cmd", "deploy", "docs", "plugin", "spec", "test"} {
		err := filepath.WalkDir(repository.Path(t, dir), func(file string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(file, "_test.go") {
				return err
			}
			text, err := os.ReadFile(file)
			for _, found := range name.FindAllSubmatch(text, -1) {
				tests[string(found[1])] = string(text)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return tests
}

// TestMarks checks the mark of each block of commands.
func TestMarks(t *testing.T) {
	tests := declaredTests(t)
	for _, b := range blocks(t) {
		if b.Language != "sh" {
			continue
		}
		if err := problem(b, tests); err != nil {
			t.Errorf("%s: %v:\n%s", b, err, b.Content)
		}
	}
}

// TestMarks_Problems shows that a mark can be wrong.
func TestMarks_Problems(t *testing.T) {
	tests := map[string]string{"TestNode": `pages.Marked(t) "Readme"`, "TestOther": ""}
	for _, test := range []struct {
		mark, content string
		good          bool
	}{
		{"", "rdma-spec generate --for docker", true},
		{"", "kubectl get pods", false},
		{"TestNode", "kubectl get pods", true},
		{"TestNode/Readme", "kubectl get pods", true},
		{"TestNode/Other", "kubectl get pods", false},
		{"TestOther", "kubectl get pods", false},
		{"TestNone", "kubectl get pods", false},
		{"(TestOther does the same)", "kubectl get pods", true},
		{"(TestNone does the same)", "kubectl get pods", false},
		{"(no reason)", "rdma-spec explain -f a.yaml", false},
		{"cluster", "kubectl get pods", false},
	} {
		b := pages.Block{Mark: test.mark, Content: test.content}
		if err := problem(b, tests); (err == nil) != test.good {
			t.Errorf("%q, %q: %v", test.mark, test.content, err)
		}
	}
}

// TestCommandsInTextsRun runs each block of commands that has no mark, from the repository's top directory. Files below
// /etc are written below a temporary directory instead.
func TestCommandsInTextsRun(t *testing.T) {
	p, count := repository.Build(t), 0
	for _, b := range blocks(t) {
		if b.Language != "sh" || b.Mark != "" {
			continue
		}
		count++
		if err := run(t, p, b.Content); err != nil {
			t.Errorf("%s: %v\n%s", b, err, b.Content)
		}
	}
	if count < 5 {
		t.Errorf("%d blocks run, want more: are the blocks still marked sh?", count)
	}
}

// run runs a block of commands from the repository's top directory.
func run(t *testing.T, p repository.Programs, commands string) error {
	t.Helper()
	dir := scratch.Dir(t)
	for _, file := range regexp.MustCompile(` (/etc/\S+)`).FindAllStringSubmatch(commands, -1) {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(file[1])), 0o755); err != nil {
			return err
		}
	}
	cmd := exec.Command("sh", "-e", "-c", strings.ReplaceAll(commands, " /etc/", " "+dir+"/etc/"))
	cmd.Dir, cmd.Env = repository.Path(t, "."), append(os.Environ(), "PATH="+p.Dir+":"+os.Getenv("PATH"))
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
		for _, line := range b.Lines() {
			switch typed, isTyped := strings.CutPrefix(line, "$ "); {
			case b.Language == "sh":
				check(b.File, line)
			case b.Language == "console" && isTyped:
				check(b.File, typed)
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
	namespaces = []string{"rdma-spec", "guests", "ml", "inference", "kube-system", "nvidia-network-operator", "spiderpool"}
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
		case words[0] == "apt-get": // a file of the release: TestRehearsal
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
func declared(t *testing.T, dir, name string) error {
	files, err := filepath.Glob(repository.Path(t, filepath.Join(dir, "*_test.go")))
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
	return fmt.Errorf("%s has no test %s", dir, name)
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
