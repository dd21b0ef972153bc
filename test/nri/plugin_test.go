// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/child"
	"github.com/rdma-spec/rdma-spec/test/testing/loopback"
)

// Responses of /readyz.
const (
	registered = "registered"
	waiting    = "waiting behind a registered plugin"
)

// plugin is a process of nri-rdma.
type plugin struct {
	process      *os.Process
	log, address string
	killed       bool
	ended        chan struct{}
}

// start starts a plugin with additional flags.
func (n *node) start(t *testing.T, flags ...string) *plugin {
	t.Helper()
	p := &plugin{address: loopback.Address(), ended: make(chan struct{}),
		log: filepath.Join(n.dir, fmt.Sprintf("plugin-%d.log", len(n.plugins)))}
	args := []string{"--socket", n.socket(), "--root", n.root, "--config", n.config(), "--http", p.address,
		"--log-format", "json",
		"--containerd-address", n.containerd.Socket, "--budget", "1500ms"}
	log, err := os.Create(p.log)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(n.program, append(args, flags...)...)
	cmd.Stdout, cmd.Stderr = log, log
	err = child.Start(cmd)
	_ = log.Close() // the process has its own copy
	if err != nil {
		t.Fatal(err)
	}
	p.process = cmd.Process
	go func() {
		_ = cmd.Wait() // its log contains the reason
		close(p.ended)
	}()
	n.plugins = append(n.plugins, p)
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(p.log), lastOf(p.log))
		}
	})
	return p
}

// awaitReady waits until /readyz responds with a text.
func (p *plugin) awaitReady(t *testing.T, text string) {
	t.Helper()
	await.Success(t, stuck, text, func() error {
		select {
		case <-p.ended:
			t.Fatalf("the plugin has ended, and should be %s:\n%s", text, lastOf(p.log))
		default:
		}
		return p.says(text)
	})
}

// says returns nil if /readyz responds with a text.
func (p *plugin) says(text string) error {
	answer, err := http.Get("http://" + p.address + "/readyz")
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }() // it was only read
	body, err := io.ReadAll(answer.Body)
	if err == nil && (answer.StatusCode != http.StatusOK || strings.TrimSpace(string(body)) != text) {
		err = fmt.Errorf("%s: %s", answer.Status, body)
	}
	return err
}

// end ends the plugin with SIGTERM.
func (p *plugin) end(t *testing.T) {
	t.Helper()
	p.terminate()
	p.awaitEnd(t)
}

func (p *plugin) terminate() { _ = p.process.Signal(syscall.SIGTERM) } // it may have ended

func (p *plugin) awaitEnd(t *testing.T) {
	t.Helper()
	await.Receive(t, stuck, "the plugin's end", p.ended)
}

// kill ends the plugin with SIGKILL.
func (p *plugin) kill() {
	p.killed = true
	_ = p.process.Kill() // it may have ended
	<-p.ended
}
