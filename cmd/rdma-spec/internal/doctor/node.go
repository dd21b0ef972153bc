// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"sync"
)

// Question is what a node is asked that no file of it answers: a runtime's containers, a daemon's effective configuration. Its name is
// that of the file in which collect keeps the answer.
type Question string

// answersFolder is where a copy of a node has the answers, each a file named after its question.
const answersFolder = "rdma-spec/answers"

// maxFile bounds what is read of a file.
const maxFile = 4 << 20

// errUndeclared means that a check reads what it does not say that it reads, so that collect would not copy it.
var errUndeclared = errors.New("the check does not declare that it reads this")

// Node is a node to be looked at: live, or a copy.
type Node struct {
	Root  string // "/" is the live node
	files *os.Root
	// ask answers questions on the live node. It returns JSON.
	ask map[Question]func(context.Context) ([]byte, error)

	mu      sync.Mutex
	answers map[Question]func() ([]byte, error) // asked at most once
}

// Open opens the node below a root. On a live node, ask answers the questions; a copy has the answers with it.
func Open(root string, ask map[Question]func(context.Context) ([]byte, error)) (*Node, error) {
	files, err := os.OpenRoot(root)
	if err != nil {
		return nil, err
	}
	return &Node{Root: root, files: files, ask: ask, answers: map[Question]func() ([]byte, error){}}, nil
}

// Close closes the node.
func (n *Node) Close() error { return n.files.Close() }

// answer asks a question, once.
func (n *Node) answer(ctx context.Context, q Question) ([]byte, error) {
	n.mu.Lock()
	once, ok := n.answers[q]
	if !ok {
		once = sync.OnceValues(func() ([]byte, error) {
			if ask, live := n.ask[q]; live {
				return ask(ctx)
			}
			return n.read(path.Join(answersFolder, string(q)))
		})
		n.answers[q] = once
	}
	n.mu.Unlock()
	return once()
}

// read reads a file, up to maxFile bytes.
func (n *Node) read(name string) ([]byte, error) {
	file, err := n.files.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	return io.ReadAll(io.LimitReader(file, maxFile))
}

// View is what a check sees of a node: the files and answers that it declares.
type View struct {
	node  *Node
	check *Check
	ctx   context.Context
}

// Read returns a file's text. Names are below the root, without a leading slash.
func (v *View) Read(name string) (string, error) {
	if err := v.declared(name); err != nil {
		return "", err
	}
	text, err := v.node.read(name)
	return string(text), err
}

// Glob returns the names that match a pattern, sorted.
func (v *View) Glob(pattern string) ([]string, error) {
	return fs.Glob(v.node.files.FS(), pattern)
}

// Exists reports whether there is a file or folder. The error says that it cannot be told.
func (v *View) Exists(name string) (bool, error) {
	if err := v.declared(name); err != nil {
		return false, err
	}
	_, err := v.node.files.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Ask decodes the answer to a question.
func (v *View) Ask(q Question, into any) error {
	text, err := v.node.answer(v.ctx, q)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// declared fails for what the check does not say that it reads.
func (v *View) declared(name string) error {
	for _, pattern := range v.check.Reads {
		if ok, err := path.Match(pattern, name); ok && err == nil {
			return nil
		}
	}
	return fmt.Errorf("%s: %s: %w", v.check.ID, name, errUndeclared)
}
