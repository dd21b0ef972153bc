// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// Question is what a node is asked that no file of it answers: a runtime's containers, a daemon's effective configuration. Its name is
// that of the file in which collect keeps the answer.
type Question string

// Answer is the answer to a question: JSON, or why there is none. The files in AnswersFolder have this form.
type Answer struct {
	JSON  json.RawMessage `json:"answer,omitempty"`
	Error string          `json:"error,omitempty"`
}

// AnswerOf returns the answer that has a value or, where there is one, the error.
func AnswerOf(value any, err error) Answer {
	var text []byte
	if err == nil {
		text, err = json.Marshal(value)
	}
	if err != nil {
		return Answer{Error: err.Error()}
	}
	return Answer{JSON: text}
}

// Ask answers a question on a live node. JSON can encode the answer.
type Ask func(context.Context) (any, error)

// AnswersFolder is where a copy of a node has the answers, each a file named after its question.
const AnswersFolder = "rdma-spec/answers"

// Inventory are the files from which View.HCAs has what it returns, as patterns. Every check may use it, so collect copies them always.
var Inventory = []string{
	"dev/infiniband/*", "dev/hfi1_*", hca.DeviceTable,
	"sys/class/infiniband/*", "sys/class/infiniband/*/*", "sys/class/infiniband/*/ports/*/*",
	"sys/class/infiniband/*/device/driver", "sys/class/infiniband/*/device/physfn", "sys/class/infiniband/*/device/numa_node",
	"sys/class/infiniband/*/device/net/*/*",
	"sys/class/infiniband_verbs/*/*", "sys/class/infiniband_mad/*/*", "sys/class/hfi1_user/*/dev", "sys/class/misc/rdma_cm/dev",
	"sys/class/net/*/*", "sys/module/ib_core/parameters/netns_mode",
}

// Node is a node to be looked at: live, or a copy.
type Node struct {
	// HCAs reads the HCAs; nil reads them in this process.
	HCAs HCAReader

	root string
	tree tree
	// unseen are the folders of always that are not there.
	unseen []string
	// ask answers questions on a live node.
	ask map[Question]Ask
	// hcas reads the inventory, once.
	hcas func() (*hca.Node, error)

	// Patience is how long an HCA, a question and a check may take: the constant, unless the caller knows that the node is slow.
	Patience time.Duration
	// undeclared hears of what a check reads without declaring it; nil in programs.
	undeclared func(error)

	mu      sync.Mutex
	answers map[Question]func() Answer // asked at most once
}

// Open opens the node below a root. On a live node, ask answers the questions; a copy, which has an AnswersFolder, has the answers with it.
func Open(root string, ask map[Question]Ask) (*Node, error) {
	t, err := openTree(root)
	if err != nil {
		return nil, err
	}
	if _, err := t.Stat(AnswersFolder); err == nil {
		ask = nil
	}
	n := &Node{root: root, tree: t, ask: ask, answers: map[Question]func() Answer{}, Patience: Patience}
	n.hcas = sync.OnceValues(n.readHCAs)
	for _, folder := range always {
		if _, err := t.Stat(folder); errors.Is(err, fs.ErrNotExist) {
			n.unseen = append(n.unseen, folder)
		}
	}
	return n, nil
}

// Close closes the node.
func (n *Node) Close() error { return n.tree.Close() }

// Inventory returns the inventory of the node's HCAs, which is read once. One that does not answer is Unread.
func (n *Node) Inventory() (*hca.Node, error) { return n.hcas() }

// always are folders that every node has: a container sees one only if it is mounted there, and a copy has it if its maker saw it.
var always = []string{"sys/bus", "sys/fs/cgroup"}

// notFromHere ends the text of what is unknown because a container does not have it. kubectl-rdma knows it by its first words.
const notFromHere = "cannot be seen from here: run the doctor on the node itself"

// sees returns an error where the folder that has a file, or what matches a pattern, cannot be seen.
func (n *Node) sees(name string) error {
	for _, folder := range n.unseen {
		if strings.HasPrefix(name, folder+"/") {
			return fmt.Errorf("/%s %s", folder, notFromHere)
		}
	}
	return nil
}

// Answer asks a question, once, however many checks want to know. No asker's patience ends it for the others.
func (n *Node) Answer(q Question) Answer {
	n.mu.Lock()
	once, ok := n.answers[q]
	if !ok {
		once = sync.OnceValue(func() Answer { return n.question(q) })
		n.answers[q] = once
	}
	n.mu.Unlock()
	return once()
}

func (n *Node) question(q Question) Answer {
	ask, live := n.ask[q]
	if !live {
		var a Answer
		text, err := n.tree.read(path.Join(AnswersFolder, string(q)))
		if err == nil {
			err = json.Unmarshal(text, &a)
		}
		if err != nil {
			return Answer{Error: fmt.Sprintf("there is no answer about %s", q)}
		}
		return a
	}
	ctx, cancel := context.WithTimeout(context.Background(), n.Patience)
	defer cancel()
	answer := make(chan Answer, 1)
	go func() {
		answer <- AnswerOf(ask(ctx))
	}()
	select {
	case a := <-answer:
		return a
	case <-ctx.Done():
		return Answer{Error: fmt.Sprintf("there is no answer about %s within %s", q, n.Patience)}
	}
}

// HCAReader reads HCAs, all at once, and closes the channel when it has no more. It sends without waiting for the receiver.
type HCAReader func(names []string) <-chan hca.HCA

// readHere reads the HCAs below a root in this process.
func readHere(root string) HCAReader {
	return func(names []string) <-chan hca.HCA {
		answers := make(chan hca.HCA, len(names))
		var group sync.WaitGroup
		for _, name := range names {
			group.Go(func() { answers <- hca.Read(root, name) })
		}
		go func() { group.Wait(); close(answers) }()
		return answers
	}
}

// readHCAs reads all HCAs. One that does not answer in time is unread, and costs the others nothing.
func (n *Node) readHCAs() (*hca.Node, error) {
	listed, err := hca.List(n.root)
	if err != nil || len(listed.HCAs) == 0 {
		return listed, err
	}
	var names []string
	for _, h := range listed.HCAs {
		names = append(names, h.Name)
	}
	read := n.HCAs
	if read == nil {
		read = readHere(n.root)
	}
	answers, late := read(names), time.After(n.Patience)
	got := map[string]hca.HCA{}
	for h, ok := next(answers, late); ok; h, ok = next(answers, late) {
		got[h.Name] = h
	}
	return listed.Complete(func(name string) hca.HCA {
		if h, ok := got[name]; ok {
			return h
		}
		return hca.HCA{Name: name, NUMANode: -1, Unread: fmt.Sprintf("it did not answer within %s", n.Patience)}
	}), nil
}

// next returns the next answer, if there is one before it is late.
func next(answers <-chan hca.HCA, late <-chan time.Time) (h hca.HCA, ok bool) {
	select {
	case h, ok = <-answers:
		return h, ok
	default:
	}
	select {
	case h, ok = <-answers:
	case <-late:
	}
	return h, ok
}

// View is what a check sees of a node: its HCAs, and the files and answers that the check declares.
type View struct {
	node  *Node
	check *Check
}

// HCAs returns the inventory of the node's HCAs. One that does not answer is Unread.
func (v *View) HCAs() (*hca.Node, error) { return v.node.Inventory() }

// Read returns a file's text. Names are below the root, without a leading slash.
func (v *View) Read(name string) (string, error) {
	if err := v.declared(name); err != nil {
		return "", err
	}
	text, err := v.node.tree.read(name)
	return string(text), err
}

// Glob returns the names that match a pattern, sorted. The error means that a folder could not be listed.
func (v *View) Glob(pattern string) ([]string, error) {
	if err := v.declared(pattern); err != nil {
		return nil, err
	}
	return v.node.tree.glob(pattern)
}

// Readlink returns where a link leads, as the link has it.
func (v *View) Readlink(name string) (string, error) {
	if err := v.declared(name); err != nil {
		return "", err
	}
	return v.node.tree.readlink(name)
}

// Exists reports whether there is a file or folder. The error says that it cannot be told.
func (v *View) Exists(name string) (bool, error) {
	if err := v.declared(name); err != nil {
		return false, err
	}
	_, err := v.node.tree.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Ask decodes the answer to a question.
func (v *View) Ask(q Question, into any) error {
	if !slices.Contains(v.check.Asks, q) {
		return v.refuse(string(q))
	}
	a := v.node.Answer(q)
	if a.Error != "" {
		return errors.New(a.Error)
	}
	return json.Unmarshal(a.JSON, into)
}
