// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/rdma-spec/rdma-spec/plugin/nritest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/child"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// programs builds the measured programs like a release, and returns their directory.
var programs = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return "", err
	}
	built = dir
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-tags", "grpcnotrace",
		"-ldflags", "-s -w", "-o", dir,
		"../../cmd/nri-rdma", "../../cmd/rdma-hook", "./reference", "./peers")
	if out, err := build.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("build: %w\n%s", err, out)
	}
	return dir, nil
})

// built is the directory that programs returned; "" before.
var built string

// removePrograms removes the programs that were built.
func removePrograms() {
	if built != "" {
		_ = os.RemoveAll(built)
	}
}

// plugins are processes that are registered with their own runtime, which calls only them.
type plugins struct {
	runtime   *nritest.Runtime
	processes []*exec.Cmd
	ended     []<-chan struct{} // closed when the process has ended
	log       string            // the file with the output of the processes
}

// start starts plugins, one for each command line, with a runtime that has no containers, and waits until they are
// registered. They end with the test.
func start(t testing.TB, commands ...string) *plugins {
	t.Helper()
	return startWith(t, "containerd", nil, commands...)
}

// startWith is like start, with a runtime that has this name and these containers.
func startWith(t testing.TB, name string, existing []*api.Container, commands ...string) *plugins {
	t.Helper()
	dir, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	p := &plugins{runtime: nritest.New(t, name, "v2.4.2"), log: filepath.Join(scratch.Dir(t), "log")}
	p.runtime.SetExisting(existing)
	p.runtime.Start(t)
	log, err := os.Create(p.log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	t.Cleanup(p.end)
	for i, command := range commands {
		words := strings.Fields(command)
		process := exec.Command(filepath.Join(dir, words[0]), append(words[1:], "--socket", p.runtime.Unproxied())...)
		process.Stdout, process.Stderr = log, log
		if err := child.Start(process); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			_ = process.Wait() // its log contains the reason
			close(ended)
		}()
		p.processes, p.ended = append(p.processes, process), append(p.ended, ended)
		await.That(t, 30*time.Second, "registered: "+command, func() bool {
			select {
			case <-ended:
				t.Fatalf("%s has ended: %s", command, p.lastLines())
			default:
			}
			return p.runtime.Synchronised() > i
		})
	}
	return p
}

// end ends the processes if they are still running.
func (p *plugins) end() {
	for i, process := range p.processes {
		_ = process.Process.Kill() // it may have ended already
		<-p.ended[i]
	}
	p.processes, p.ended = nil, nil
}

// answer returns the plugins' adjustment of a container.
func (p *plugins) answer(t testing.TB, o order) *api.ContainerAdjustment {
	t.Helper()
	adjustment, err := p.runtime.Create(t.Context(), o.pod, o.ctr)
	if err != nil {
		t.Fatal(err)
	}
	return adjustment
}

// lastLines returns the last lines of the plugins' log.
func (p *plugins) lastLines() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-2000):])
}

// anonymous returns the sum of all processes' anonymous memory in MB.
func (p *plugins) anonymous(t testing.TB) float64 {
	t.Helper()
	var kB int
	for _, process := range p.processes {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", process.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		_, after, _ := strings.Cut(string(status), "RssAnon:")
		var n int
		if _, err := fmt.Sscan(after, &n); err != nil {
			t.Fatalf("RssAnon of %d: %v", process.Process.Pid, err)
		}
		kB += n
	}
	return float64(kB) * 1024 / 1e6
}
