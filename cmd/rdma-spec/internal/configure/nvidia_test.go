// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/race"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// Beside nvidia-ctk, containerd always starts; what is written over, the doctor names and the next configure restores.
func TestConfigureBesideNVIDIA(t *testing.T) {
	if race.Detector {
		t.Skip("runs containerd a hundred times, and the race detector does not see it")
	}
	tool := repository.Part(t, "nvidia-ctk-*/nvidia-ctk")
	for _, test := range []struct{ version, config string }{
		{"1.7.35", "version = 2\n[plugins.'io.containerd.nri.v1.nri']\n  disable = true\n"},
		{"2.4.2", "version = 3\n[plugins.'io.containerd.nri.v1.nri']\n  disable = true\n"},
	} {
		t.Run(test.version, func(t *testing.T) {
			program := repository.Containerd(t, test.version)
			lost := 0
			for round := range 4 {
				root := installedNode(t, program)
				config := filepath.Join(root, "etc/containerd/config.toml")
				scratch.File(t, config, test.config, 0o600)
				got := besideNVIDIA(t, tool, root, round)
				on, found := nriOn(t, program, root), overwritten(t, root)
				if got.Status != 0 && !strings.Contains(got.Stderr, "changed in the meantime") ||
					got.Status == 0 && on == (len(found) > 0) {
					t.Errorf("round %d: NRI is on: %t, the doctor finds %+v, %+v", round, on, found, got)
				}
				if !on && got.Status == 0 {
					lost++
				}
				done(t, root, "nri")
				_, handlers := containerd.Handlers(dump(t, program, root))
				if found := overwritten(t, root); !nriOn(t, program, root) || handlers["nvidia"] == nil || len(found) > 0 {
					t.Errorf("round %d, again: the handlers %v, and the doctor finds %+v", round, handlers, found)
				}
				// nvidia-ctk writes every line of a file anew, and --revert finds our keys in it.
				got = configure(root, "--revert")
				if _, handlers := containerd.Handlers(dump(t, program, root)); got.Status != 0 || nriOn(t, program, root) ||
					handlers["nvidia"] == nil {
					t.Errorf("round %d, --revert: %+v, and the handlers %v", round, got, handlers)
				}
			}
			if lost == 0 { // it has read the file before configure changes that, and writes it afterwards
				t.Error("nvidia-ctk never wrote over NRI")
			}
		})
	}
}

// besideNVIDIA turns NRI on while nvidia-ctk adds its handler: in the first round between what that reads and what it
// writes, and in the others at different times.
func besideNVIDIA(t *testing.T, tool, root string, round int) outcome {
	t.Helper()
	inject := fmt.Sprintf("inject=openat:delay_enter=%dms:when=1", round*100)
	if round == 0 {
		inject = "inject=mkdirat:signal=STOP" // of the directory of its own file, which it makes before it writes
	}
	ctk := withEtc(root, "strace", "-f", "-qq", "-o", "/dev/null", "-P", "/etc/containerd/config.toml",
		"-P", "/etc/containerd/conf.d", "-e", inject, tool, "runtime", "configure", "--runtime", "containerd")
	ctk.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var said bytes.Buffer
	ctk.Stdout, ctk.Stderr = &said, &said
	if err := ctk.Start(); err != nil {
		t.Fatal(err)
	}
	if round == 0 {
		await.That(t, await.Timeout, "nvidia-ctk has read the file", func() bool {
			return containerd.Exists(filepath.Join(root, "etc/containerd/conf.d"))
		})
	}
	got := configure(root, "nri")
	if err := syscall.Kill(-ctk.Process.Pid, syscall.SIGCONT); err != nil && round == 0 {
		t.Error(err)
	}
	if err := ctk.Wait(); err != nil {
		t.Errorf("nvidia-ctk: %v: %s", err, said.Bytes())
	}
	return got
}

// nriOn reports whether NRI is on in the effective configuration.
func nriOn(t *testing.T, program, root string) bool {
	t.Helper()
	off, _ := tomledit.Lookup(dump(t, program, root), "plugins", containerd.NRIPlugin, "disable")
	return off == false
}

// toolkit has nvidia-ctk add its handler to a node, with a program called containerd.
func toolkit(t *testing.T, root, program string, flags ...string) {
	t.Helper()
	ctk := withEtc(root, repository.Part(t, "nvidia-ctk-*/nvidia-ctk"), append([]string{"runtime", "configure", "--runtime",
		"containerd"}, flags...)...)
	ctk.Env = append(os.Environ(), "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"))
	if out, err := ctk.CombinedOutput(); err != nil {
		t.Fatalf("nvidia-ctk: %v: %s", err, out)
	}
}

// As docs/guide-gpu-cluster.md says: NRI stays on, and so does a handler like NVIDIA's.
func TestConfigure_toolkitRunsAgain(t *testing.T) {
	for version, config := range map[string]string{
		"1.7.35": "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc]\n  runtime_type = 'io.containerd.runc.v2'\n",
		"2.4.2":  "version = 3\n",
	} {
		t.Run(version, func(t *testing.T) {
			program := repository.Containerd(t, version)
			root := installedNode(t, program)
			scratch.File(t, filepath.Join(root, "etc/containerd/config.toml"), config, 0o600)
			toolkit(t, root, program, "--set-as-default", "--config-source", "file")
			done(t, root, "nri")
			done(t, root, "handler rdma-nvidia --like nvidia")
			for _, when := range []string{"configured", "the toolkit again", "once more"} {
				_, handlers := containerd.Handlers(dump(t, program, root))
				found := overwritten(t, root)
				if handlers["rdma-nvidia"] == nil || handlers["nvidia"] == nil || !nriOn(t, program, root) || len(found) > 0 {
					t.Errorf("%s: the handlers are %v, and the doctor finds %+v", when, handlers, found)
				}
				toolkit(t, root, program, "--set-as-default", "--config-source", "file")
			}
			got := configure(root, "--revert")
			_, handlers := containerd.Handlers(dump(t, program, root))
			copied := handlers["rdma-nvidia"] != nil // into the toolkit's own file, with our base spec
			if text := scratch.Read(t, filepath.Join(root, "etc/containerd/config.toml")); strings.Contains(text, "rdma") ||
				(got.Status == 3) != copied || copied != strings.Contains(got.Stderr, "99-nvidia.toml refers to ") {
				t.Errorf("--revert: %+v, the handlers are %v\n%s", got, handlers, text)
			}
		})
	}
}

// nvidia-ctk copies runc's handler with our base spec, without which containerd does not start: a revert leaves that.
func TestConfigureRevert_baseSpecCopiedByToolkit(t *testing.T) {
	program := repository.Containerd(t, "2.4.2")
	root := installedNode(t, program)
	scratch.File(t, filepath.Join(root, "etc/containerd/config.toml"), "version = 3\n"+runc3, 0o600)
	done(t, root, "limits")
	done(t, root, "handler runc --in-place")
	toolkit(t, root, program, "--config-source", "command")
	_, handlers := containerd.Handlers(dump(t, program, root))
	const spec = "/etc/containerd/rdma-spec-runc.json"
	if copied, _ := tomledit.Lookup(handlers, "nvidia", containerd.BaseSpecKey); copied != spec {
		t.Fatalf("nvidia-ctk no longer copies the base spec: %v", handlers)
	}
	for range 2 {
		got := configure(root, "--revert")
		if _, err := os.Stat(filepath.Join(root, spec)); err != nil || got.Status != 3 ||
			!strings.Contains(got.Stderr, "/etc/containerd/conf.d/99-nvidia.toml refers to "+root+spec+", without which containerd") {
			t.Errorf("--revert: %v, %+v", err, got)
		}
		for _, file := range []string{"systemd/system/containerd.service.d", "containerd/rdma-spec.d"} {
			if _, err := os.Stat(filepath.Join(root, "etc", file)); err == nil {
				t.Errorf("--revert does not go on: %s is left", file)
			}
		}
	}
	if err := os.Remove(filepath.Join(root, "etc/containerd/conf.d/99-nvidia.toml")); err != nil {
		t.Fatal(err)
	}
	if done(t, root, "--revert"); containerd.Exists(filepath.Join(root, spec)) {
		t.Error("the base spec is left that nobody names")
	}
}
