// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/test/node/daemon"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// finding is a finding of the doctor.
type finding struct {
	Check, Status, Object, Text, Fix string
	Ignore                           string // the entry of doctor.yaml with which the doctor ignores it
}

// doctor runs the doctor, and returns its findings and its exit status.
func doctor(t *testing.T, flags ...string) (found []finding, status int) {
	t.Helper()
	// The timeout is long, because the node's CPU is emulated.
	stdout, stderr, status := call(t, append([]string{"doctor", "--timeout", "1m", "-o", "json"}, flags...)...)
	var answer struct{ Findings []finding }
	if err := json.Unmarshal([]byte(stdout), &answer); err != nil {
		t.Fatalf("doctor: exit status %d: %v\n%s%s", status, err, stdout, stderr)
	}
	return answer.Findings, status
}

func withStatus(all []finding, status string) []finding {
	return slices.DeleteFunc(slices.Clone(all), func(f finding) bool { return f.Status != status })
}

// clinic is a node on which faults are planted, found, and fixed.
type clinic struct {
	*testing.T
	before string // containerd's configuration
	plugin *daemon.Process
	// postponed means that containerd is restarted with the next fault, not now.
	postponed bool
	table     []string
	findings  []finding // of the doctor's last run
	found     finding   // the planted fault
}

// fault is a fault to plant. If its fix is not a command, byHand fixes it. Some fixes end with a restart of containerd,
// which the next fix includes.
type fault struct {
	name     string
	plant    func(c *clinic)
	check    string
	byHand   func(c *clinic)
	postpone bool
}

const (
	containerdFile = "/etc/containerd/config.toml"
	pluginFile     = "/etc/rdma-spec/config.yaml"
	policyFile     = "/run/rdma-spec/policy.yaml"
	runtimeUnit    = "/etc/systemd/system/containerd.service"
	unitFile       = "/etc/systemd/system/nri-rdma.service"
)

// TestDoctor plants one fault after the other on the node. For each fault, the doctor's check finds it, no other check
// finds anything wrong, and the printed fix fixes it.
func TestDoctor(t *testing.T) {
	c := &clinic{T: t}
	c.open()
	c.expect("a healthy node", "")
	for _, f := range c.faults() {
		t.Run(f.name, func(t *testing.T) {
			c.T = t
			start := time.Now()
			f.plant(c)
			found := c.expect(f.name, f.check)
			c.found = found
			fix := found.Fix
			if f.byHand != nil {
				fix = "by hand: " + fix
				f.byHand(c)
			} else {
				c.postponed = f.postpone
				c.run(fix)
				c.postponed = false
			}
			c.table = append(c.table, fmt.Sprintf("%-52s %-22s %-60s %s", f.name, found.Check, found.Object, fix))
			t.Logf("%s", time.Since(start).Round(100*time.Millisecond))
		})
	}
	c.T = t
	c.expect("the node after all fixes", "")
	t.Logf("%d faults:\n%s", len(c.table), strings.Join(c.table, "\n"))
}

// open makes the node healthy: all ports are up, and the plugin runs as a service.
func (c *clinic) open() {
	parts := nodeParts(c.T)
	onNode(c.T, "ln -sf "+filepath.Join(parts.Containerd(*version), "containerd")+" /usr/local/bin/containerd")
	c.before = scratch.Read(c, containerdFile)
	c.systemd()
	scratch.File(c.T, runtimeUnit, "[Service]\nExecStart=/usr/local/bin/containerd\n", 0o644)
	c.Cleanup(func() {
		c.stopPlugin()
		onNodeAfter(c.T, "rm -rf "+runtimeUnit+" /run/rdma-spec /var/lib/rdma-spec "+unitFile+" "+pluginFile+
			" /usr/local/bin/containerd /usr/local/bin/nri-rdma")
		scratch.File(c, containerdFile, c.before, 0o644)
		replaceContainerd(c.T, options())
	})
	c.run(filepath.Join(*bin, "rdma-spec") + " configure plugin && systemctl enable --now nri-rdma")
}

// systemd carries out what the fixes request from systemctl, which the node lacks: a script passes on its arguments,
// and waits.
func (c *clinic) systemd() {
	dir := scratch.Dir(c)
	script := fmt.Sprintf("#!/bin/sh\necho \"$@\" >%[1]s/asked && read answer <%[1]s/done && test \"$answer\" = ok\n",
		dir)
	onNode(c.T, "mkfifo "+dir+"/asked "+dir+"/done")
	scratch.File(c.T, filepath.Join(dir, "systemctl"), script, 0o755)
	c.Setenv("PATH", dir+":"+*bin+":"+os.Getenv("PATH"))
	go func() {
		for {
			asked, err := os.ReadFile(dir + "/asked")
			if err != nil {
				return
			}
			answer := "ok\n"
			if err := c.systemctl(strings.TrimSpace(string(asked))); err != nil {
				answer = "failed\n"
				c.Logf("systemctl %s: %v", asked, err)
			}
			if err := os.WriteFile(dir+"/done", []byte(answer), 0o600); err != nil {
				return
			}
		}
	}()
}

func (c *clinic) systemctl(args string) error {
	switch strings.TrimSuffix(args, ".service") {
	case "daemon-reload", "reset-failed containerd":
		return nil
	case "restart containerd":
		if c.postponed {
			return nil
		}
		before := 0
		if c.plugin != nil {
			before = strings.Count(c.plugin.Log(), "msg=registered")
		}
		if err := ctrd.Restart(within(c.T, 2*patience)); err != nil || c.plugin == nil {
			return err
		}
		return c.registered(before + 1)
	case "restart nri-rdma", "enable --now nri-rdma":
		c.stopPlugin()
		p, err := daemon.Start(nil, "/usr/local/bin/nri-rdma", "--budget", budget)
		if err != nil {
			return err
		}
		c.plugin = p
		return c.registered(1)
	}
	return fmt.Errorf("nobody expects this")
}

// registered waits until the plugin has been registered this many times, and its policy is in force.
func (c *clinic) registered(times int) error {
	writer := fmt.Sprintf("\npid: %d\n", c.plugin.PID())
	return c.plugin.Await(within(c.T, patience), "has its policy in force", func() bool {
		text, err := os.ReadFile(policyFile)
		return err == nil && strings.Contains(string(text), writer) && strings.Count(c.plugin.Log(),
			"msg=registered") >= times
	})
}

func (c *clinic) stopPlugin() {
	if c.plugin != nil {
		_ = c.plugin.Signal(syscall.SIGCONT) // a fault may have stopped it
		c.plugin.Stop()
		c.plugin = nil
	}
}

// run runs a command as an administrator would.
func (c *clinic) run(command string) {
	c.Helper()
	if out, err := exec.CommandContext(within(c.T, 4*patience), "sh", "-c", command).CombinedOutput(); err != nil {
		c.Fatalf("%s: %v: %s", command, err, out)
	}
}

// expect runs the doctor. Exactly one check must find something wrong, and expect returns its first finding. If check
// is "", nothing may be wrong.
func (c *clinic) expect(name, check string) finding {
	c.Helper()
	c.findings, _ = doctor(c.T)
	wrong, unknown := withStatus(c.findings, "wrong"), withStatus(c.findings, "unknown")
	others := slices.ContainsFunc(wrong, func(f finding) bool { return f.Check != check })
	if others || (len(wrong) > 0) != (check != "") {
		c.Errorf("%s: want %q, the doctor finds %+v\nunknown: %+v", name, check, wrong, unknown)
	}
	if len(unknown) > 0 {
		c.Logf("%s: unknown: %+v", name, unknown)
	}
	if len(wrong) == 0 {
		return finding{}
	}
	return wrong[0]
}

// ignore makes the doctor ignore its finding, with the entry that it printed, and runs the doctor once.
func (c *clinic) ignore() {
	c.Helper()
	scratch.File(c.T, "/etc/rdma-spec/doctor.yaml", "ignore:\n"+c.found.Ignore+"\n", 0o644)
	c.expect("an ignored finding", "")
	if !slices.ContainsFunc(withStatus(c.findings, "ignored"), func(f finding) bool { return f.Check == c.found.Check }) {
		c.Errorf("what is ignored is not listed: %+v", c.findings)
	}
	onNode(c.T, "rm /etc/rdma-spec/doctor.yaml")
}

// edit changes containerd's configuration.
func (c *clinic) edit(edits ...string) {
	c.Helper()
	text := scratch.Read(c, containerdFile)
	after := strings.NewReplacer(edits...).Replace(text)
	if after == text {
		c.Fatalf("%q: nothing to replace", edits)
	}
	scratch.File(c, containerdFile, after, 0o644)
}

// addHandler adds a runtime handler with a base spec.
func (c *clinic) addHandler(name, program, spec string) {
	c.Helper()
	const runtimes = "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes."
	text := fmt.Sprintf("\n%[1]s%[2]s]\n  runtime_type = 'io.containerd.runc.v2'\n  base_runtime_spec = "+
		"'%[3]s'\n%[1]s%[2]s.options]\n  BinaryName = '%[4]s'\n", runtimes, name, spec, program)
	scratch.File(c, containerdFile, scratch.Read(c, containerdFile)+text, 0o644)
}

// uninstall removes the plugin.
func (c *clinic) uninstall() {
	c.stopPlugin()
	onNode(c.T, "rm -rf "+unitFile+" /run/rdma-spec")
}
