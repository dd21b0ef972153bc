// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nri runs the program nri-rdma with NRI's own code for runtimes, in each version that containerd uses, with
// containerd's locks and under load. Plugins end, are upgraded, and are killed, and the runtime's side shows how that
// affects the node.
package nri

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/plugin/storedspec"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec/storedspectest"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/chance"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

var rounds = flag.Int("rounds", 0, "how often plugins end and are upgraded with each version of NRI; 0 skips the tests")

const (
	// memlock is the policy's memlock in bytes.
	memlock = 1 << 20
	// answer is how long the runtime waits for a plugin before it drops the plugin: long enough for any machine, unless
	// something hangs. stuck is how long the tests wait for anything else.
	answer, stuck = await.Timeout, 2 * await.Timeout
)

// eachVersion runs a test with each version of NRI for which the directory runtime contains a .mod file.
func eachVersion(t *testing.T, test func(t *testing.T, runtime string)) {
	t.Helper()
	if *rounds == 0 {
		t.Skip("takes minutes: make nri")
	}
	mods, err := filepath.Glob("runtime/*.mod")
	if err != nil {
		t.Fatal(err)
	}
	for _, mod := range mods {
		version := regexp.MustCompile(`containerd/nri v(\S+)`).FindStringSubmatch(scratch.Read(t, mod))
		if version == nil {
			t.Fatalf("%s has no version of NRI", mod)
		}
		t.Run(version[1], func(t *testing.T) {
			test(t, build(t, "runtime", "runtime-"+version[1], "-modfile", filepath.Base(mod), "-tags", "nri_no_wasm"))
		})
	}
}

// build builds the program in a directory, which is kept for the next run: go build then rebuilds only what has
// changed.
func build(t *testing.T, dir, name string, flags ...string) string {
	t.Helper()
	program, err := filepath.Abs("../../bin/nri/" + name)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", append([]string{"build", "-o", program}, flags...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, out)
	}
	return program
}

// node contains a runtime, the files that the plugins on its node read, and the plugins that were started.
type node struct {
	dir, root, program string
	handover           []string // the flags with which plugins hand over their connection
	random             *rand.Rand
	slowest            time.Duration // how long a creation may take
	containerd         *storedspectest.Server
	commands           io.Writer
	answers            *json.Decoder
	plugins            []*plugin
}

// counters count the events that the runtime has noticed. C0 to C3 are the numbers of creations of each goroutine.
type counters struct{ Registered, Closed, SecondAnswers, TimedOut, Adjusted, C0, C1, C2, C3 int }

// creation is the result of a container's creation.
type creation struct {
	ID             string
	RDMA, Adjusted bool
	Wrong          string
	Began, Ended   time.Time
}

// newNode starts a runtime. It ends with the test, and so do the plugins.
func newNode(t *testing.T, runtime string) *node {
	t.Helper()
	return newNodeThatWaits(t, runtime, answer)
}

// newNodeThatWaits starts a runtime that waits this long for a plugin's answer.
func newNodeThatWaits(t *testing.T, runtime string, answer time.Duration) *node {
	t.Helper()
	dir := scratch.Dir(t)
	n := &node{
		dir: dir, root: hcatest.V100(t), program: build(t, "../../cmd/nri-rdma", "nri-rdma"), random: chance.New(t),
		slowest: answer / 2, containerd: storedspectest.NewServer(t), handover: []string{"--handover", filepath.Join(dir, "handover")},
	}
	n.containerd.BeforeGet = func(id string, request int) error {
		if request == 1 {
			n.containerd.Put(storedspec.DefaultNamespace, id, []byte(`{"process":{"capabilities":{"bounding":["CAP_CHOWN"]}}}`))
		}
		return nil
	}
	n.containerd.BeforeUpdate = func(id string, _ int) error { // so that a plugin that ends usually has a request in progress
		time.Sleep(time.Duration(crc32.ChecksumIEEE([]byte(id))%5000) * time.Microsecond)
		return nil
	}
	scratch.File(t, n.config(), fmt.Sprintf("memlock: %d\nipcLock: always\n", memlock), 0o600)
	cmd := exec.Command(runtime, "-socket", n.socket(), "-timeout", answer.String(), "-memlock", fmt.Sprint(memlock),
		"-major", fmt.Sprint(hcatest.Major), "-minor", fmt.Sprint(hcatest.FirstVerbs), "-seed", fmt.Sprint(n.random.Uint64()))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	n.answers = json.NewDecoder(out)
	n.commands = startBeside(t, cmd, filepath.Join(dir, "runtime.log"))
	n.counters(t)
	return n
}

func (n *node) socket() string { return filepath.Join(n.dir, "nri.sock") }
func (n *node) config() string { return filepath.Join(n.dir, "config.yaml") }

// startBeside starts a program that ends when its input ends, and logs its output if the test fails.
func startBeside(t *testing.T, cmd *exec.Cmd, file string) io.Writer {
	t.Helper()
	log, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close() // this ends it
		_ = cmd.Wait() // its log contains the reason
		_ = log.Close()
		if t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(file), lastOf(file))
		}
	})
	return in
}

// lastOf returns the last lines of a log, without those about single containers.
func lastOf(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	var last string
	for line := range strings.Lines(string(text)) {
		if !strings.Contains(line, `"adjusted"`) {
			last += line
		}
	}
	return last[max(0, len(last)-3000):]
}

// ask sends a command to the runtime, and decodes its answer.
func (n *node) ask(t *testing.T, command string, answer any) {
	t.Helper()
	if _, err := fmt.Fprintln(n.commands, command); err != nil {
		t.Fatalf("runtime, %s: %v", command, err)
	}
	if err := n.answers.Decode(answer); err != nil {
		t.Fatalf("runtime, %s: %v", command, err)
	}
}

func (n *node) counters(t *testing.T) (c counters) {
	t.Helper()
	n.ask(t, "counters", &c)
	return c
}

// awaitCount waits until the runtime's counters fulfill a condition.
func (n *node) awaitCount(t *testing.T, what string, noticed func(counters) bool) {
	t.Helper()
	await.That(t, stuck, what, func() bool { return noticed(n.counters(t)) })
}

// load makes the runtime create containers, with pauses of at most 2 ms.
func (n *node) load(t *testing.T) { n.ask(t, "load 2ms", &counters{}) }

func (n *node) creations(t *testing.T) (all []creation) {
	t.Helper()
	n.ask(t, "creations", &all)
	return all
}

// pause waits for a random time, up to 20 ms, so that what follows can happen at any point of the load.
func (n *node) pause() { time.Sleep(time.Duration(n.random.Int64N(int64(20 * time.Millisecond)))) }

// goesOn waits until each goroutine of the load has created more containers and, if adjusted is true, the plugin has
// adjusted some of them.
func (n *node) goesOn(t *testing.T, adjusted bool) {
	t.Helper()
	before := n.counters(t)
	n.awaitCount(t, "creating containers", func(c counters) bool {
		return min(c.C0-before.C0, c.C1-before.C1, c.C2-before.C2, c.C3-before.C3) > 1
	})
	n.awaitCount(t, "adjusting containers", func(c counters) bool { return !adjusted || c.Adjusted >= before.Adjusted+10 })
}

// judge compares what the runtime received with the logs of the plugins that were not killed: each answer must have
// arrived once, and for its request. If lasting is true, plugins were running all the time, and must also have made
// each edit of a stored spec, once.
func (n *node) judge(t *testing.T, lasting bool) {
	t.Helper()
	creations := n.creations(t)
	answered := map[string]int{}
	for _, p := range n.plugins {
		if !p.killed {
			p.answered(t, answered)
		}
	}
	problems, longest, rdma := map[string][]string{}, time.Duration(0), 0
	for _, c := range creations {
		longest = max(longest, c.Ended.Sub(c.Began))
		for problem, is := range map[string]bool{
			"failed: " + c.Wrong: c.Wrong != "",
			"answer lost":        !c.Adjusted && answered[c.ID] > 0,
			"answered twice":     answered[c.ID] > 1,
			"without the plugin": lasting && c.RDMA && !c.Adjusted,
			"not edited once":    lasting && c.RDMA && n.containerd.Updates(c.ID) != 1,
		} {
			if is {
				problems[problem] = append(problems[problem], c.ID)
			}
		}
		if c.RDMA {
			rdma++
		}
	}
	noticed := n.counters(t)
	if len(problems["answer lost"]) <= noticed.TimedOut { // the runtime no longer waited for these answers
		delete(problems, "answer lost")
	}
	for problem, ids := range problems {
		t.Errorf("%d creations: %s, as in %s", len(ids), problem, ids[:min(len(ids), 5)])
	}
	if noticed.SecondAnswers > noticed.TimedOut {
		t.Errorf("%d answers that the runtime did not wait for", noticed.SecondAnswers)
	}
	if longest > n.slowest {
		t.Errorf("a creation took %s", longest)
	}
	t.Logf("%d creations, %d of them with a verbs device, %d adjusted, the longest took %s; registered %d times, %d "+
		"connections closed",
		len(creations), rdma, noticed.Adjusted, longest.Round(time.Millisecond), noticed.Registered, noticed.Closed)
}

// answered counts those answers in a plugin's log that change a container.
func (p *plugin) answered(t *testing.T, answers map[string]int) {
	t.Helper()
	log, err := os.Open(p.log)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }() // it was only read
	for lines := bufio.NewScanner(log); lines.Scan(); {
		var line struct{ Msg, Container string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "adjusted" {
			answers[line.Container]++
		}
	}
}
