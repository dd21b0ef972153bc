// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/plugin/policy/inforce"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

const (
	low    = spec.Limit(8 << 20)
	pid    = 1000
	parent = "/" // limitstest puts all containers' cgroups below a parent
)

var (
	ours   = limitstest.ID("ours")
	theirs = limitstest.ID("theirs")
)

// newBundle creates a bundle with this config.json, and returns its directory.
func newBundle(t testing.TB, config string) string {
	t.Helper()
	dir := scratch.Dir(t)
	scratch.File(t, filepath.Join(dir, "config.json"), config, 0o600)
	return dir
}

// stateOf returns the OCI state of a container that is being created.
func stateOf(id string, pid int, bundle string) string {
	text, err := json.Marshal(map[string]any{"ociVersion": "1.2.0", "id": id, "status": "creating",
		"pid": pid, "bundle": bundle})
	if err != nil {
		panic(err) // cannot happen, because every string can be encoded
	}
	return string(text)
}

// configOf returns a config.json for a container with an ID. fields is appended, and begins with a comma.
func configOf(id, fields string) string {
	return fmt.Sprintf(`{"ociVersion":"1.2.0","process":{"args":["sh"]},"linux":{"cgroupsPath":%q}%s}`, parent+id, fields)
}

// call runs the hook on a kernel, and returns its exit status and the lines that it writes to the journal. The timeout
// is long enough for a busy machine.
func call(k limits.Kernel, stdin io.Reader, args ...string) (status int, journal []string) {
	return callInTime(k, stdin, append([]string{"--within", "1m"}, args...)...)
}

// callInTime is like call, with the hook's default timeout.
func callInTime(k limits.Kernel, stdin io.Reader, args ...string) (status int, journal []string) {
	var stderr bytes.Buffer
	status = runHook(append([]string{"memlock"}, args...), stdin, &stderr, "/none/policy.yaml", limits.On(k), func(line string) error {
		journal = append(journal, line)
		return nil
	})
	if got := stderr.String(); got != "" && got != "rdma-hook: "+strings.Join(journal, "")+"\n" {
		journal = append(journal, "standard error differs: "+got)
	}
	return status, journal
}

// The hook raises the container's process, and never lowers it.
func TestRaise(t *testing.T) {
	for name, test := range map[string]struct {
		had  spec.Limit
		args string
		want spec.Limit
	}{
		"unlimited":        {low, "", spec.Unlimited},
		"a size":           {low, "--memlock 16Gi --required", 16 << 30},
		"a size in bytes":  {low, "--memlock=17179869184", 16 << 30},
		"never lowers":     {1 << 40, "--memlock 16Gi", 1 << 40},
		"is unlimited":     {spec.Unlimited, "--memlock 16Gi", spec.Unlimited},
		"not a size":       {low, "--memlock 16Q", low},
		"not a flag":       {low, "--memlok 16Gi", low},
		"not an argument":  {low, "now", low},
		"not a duration":   {low, "--within 1", low},
		"within a second":  {low, "--within 1s", spec.Unlimited},
		"as large as it's": {low, "--memlock 8Mi", low},
	} {
		t.Run(name, func(t *testing.T) {
			k := limitstest.NewKernel(map[string][]spec.Limit{ours: {test.had}, theirs: {low}})
			bundle := newBundle(t, configOf(ours, ""))
			status, journal := call(k, strings.NewReader(stateOf("web", pid, bundle)), strings.Fields(test.args)...)
			if got := k.Soft(ours)[0]; got != test.want || k.Soft(theirs)[0] != low {
				t.Errorf("memlock is %s, want %s; that of another container is %s", got, test.want, k.Soft(theirs)[0])
			}
			if wrong := strings.HasPrefix(name, "not "); status != 0 || wrong != (len(journal) == 1) {
				t.Errorf("exit status %d, journal %q", status, journal)
			}
		})
	}
}

// If another party decides the container's memlock, the hook changes nothing and logs nothing.
func TestHook_leavesAlone(t *testing.T) {
	annotated := func(keyAndValue string) string { return `,"annotations":{` + keyAndValue + `}` }
	const podman = `"io.container.manager":"libpod","io.kubernetes.cri-o.Created":"2026-11-22","io.kubernetes.cri-o.TTY":"false","io.kubernetes.cri-o.SandboxID":"a","io.kubernetes.cri-o.ContainerType":"container"`
	for name, test := range map[string]struct {
		fields, state, command string
		raised                 bool
	}{
		"nobody decides": {fields: `,"hostname":"a"`, raised: true},
		"other limits": {fields: `,"process":{"rlimits":[{"type":"RLIMIT_NOFILE","hard":1024,"soft":1024}]}`,
			raised: true},
		"Podman":                 {fields: annotated(podman), raised: true},
		"RLIMIT_MEMLOCK":         {fields: `,"process":{"rlimits":[{"type":"RLIMIT_NOFILE"},{"type":"RLIMIT_MEMLOCK","hard":17179869184,"soft":17179869184}]}`},
		"containerd's CRI":       {fields: annotated(`"io.kubernetes.cri.container-type":"container"`)},
		"CRI-O":                  {fields: annotated(`"io.kubernetes.cri-o.Metadata":"{}"`)},
		"CRI-O as Podman":        {fields: annotated(podman + `,"io.kubernetes.cri-o.Labels":"{}"`)},
		"CRI in the state alone": {state: annotated(`"io.kubernetes.cri.sandbox-id":"a"`)},
		"cri-dockerd":            {fields: `,"linux":{"cgroupsPath":"/kubepods/` + ours + `"}`},
		"a virtual machine":      {fields: `,"vm":{"kernel":{"path":"/vmlinux"}}`},
		"Kata by annotation":     {fields: annotated(`"io.katacontainers.pkg.oci.container_type":"pod_sandbox"`)},
		"gVisor by process":      {command: "runsc-sandbox"},
		"runc by process":        {command: "/usr/bin/runc", raised: true},
	} {
		t.Run(name, func(t *testing.T) {
			k := limitstest.NewKernel(map[string][]spec.Limit{ours: {low}})
			k.Table[pid].Command = test.command
			state := strings.TrimSuffix(stateOf("web", pid, newBundle(t, configOf(ours, test.fields))), "}") + test.state + "}"
			status, journal := call(k, strings.NewReader(state), "--required")
			if status != 0 || len(journal) > 0 {
				t.Errorf("exit status %d, journal %q", status, journal)
			}
			if got := k.Soft(ours)[0]; got == spec.Unlimited != test.raised || k.Sets() > 0 != test.raised {
				t.Errorf("memlock is %s after %d changes", got, k.Sets())
			}
		})
	}
}

// With --kubernetes, Kubernetes containers are raised if no plugin has written its policy since boot.
func TestHook_kubernetes(t *testing.T) {
	if inForce != inforce.File {
		t.Errorf("the policy in force is %s, and the hook looks for %s", inforce.File, inForce)
	}
	policy := filepath.Join(scratch.Dir(t), "policy.yaml")
	scratch.File(t, policy, "", 0o600)
	for _, test := range []struct {
		policy, fields, args string
		want                 spec.Limit
	}{
		{"/none", "", "", low},
		{"/none", "", "--kubernetes", spec.Unlimited},
		{policy, "", "--kubernetes", low},
		{policy + "/none", "", "--kubernetes", low}, // below a file, so the hook cannot tell whether the policy exists
		{"/none", `,"process":{"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":8388608,"soft":8388608}]}`, "--kubernetes", low},
		{"/none", `,"vm":{}`, "--kubernetes", low},
	} {
		k := limitstest.NewKernel(map[string][]spec.Limit{ours: {low}})
		bundle := newBundle(t, configOf(ours, `,"annotations":{"io.kubernetes.cri.container-type":"container"}`+test.fields))
		var stderr bytes.Buffer
		status := runHook(strings.Fields("memlock "+test.args), strings.NewReader(stateOf("web", pid, bundle)), &stderr, test.policy,
			limits.On(k), func(string) error { return nil })
		if got := k.Soft(ours)[0]; got != test.want || status != 0 || stderr.Len() > 0 {
			t.Errorf("%+v: memlock is %s, exit status %d, %s", test, got, status, &stderr)
		}
	}
}

// An error is written to the journal, and no process is raised. The container starts, except with --required.
func TestHook_errors(t *testing.T) {
	good := newBundle(t, configOf(ours, ""))
	pipe := scratch.Dir(t)
	must.Succeed(t, unix.Mkfifo(filepath.Join(pipe, "config.json"), 0o600))
	for name, test := range map[string]struct{ state, want string }{
		"empty":             {"", "standard input is not an OCI state"},
		"garbage":           {"\x00\x01garbage", "standard input is not an OCI state"},
		"10 MB of garbage":  {strings.Repeat("garbage ", 10<<20/8), "longer than 1048576 bytes"},
		"10 MB of brackets": {strings.Repeat("[", 10<<20), "longer than 1048576 bytes"},
		"1 MB of brackets":  {strings.Repeat("[", stateMost), "standard input is not an OCI state"},
		"another type":      {`{"pid":"1000"}`, "standard input is not an OCI state"},
		"two states":        {stateOf("web", pid, good) + stateOf("web", pid, good), "standard input is not an OCI state"},
		"no process":        {stateOf("web", 0, good), "has no process"},
		"the init process":  {stateOf("web", 1, good), "has no process"},
		"a negative one":    {stateOf("web", -1000, good), "has no process"},
		"no bundle":         {stateOf("web", pid, ""), "has no bundle"},
		"a relative bundle": {stateOf("web", pid, "bundle"), "has no bundle"},
		"a bundle gone": {stateOf("web", pid, "/none"),
			`container "web": open /none/config.json: no such file or directory`},
		"a pipe":          {stateOf("web", pid, pipe), "is a FIFO, not a regular file"},
		"a broken config": {stateOf("web", pid, newBundle(t, "{")), "is not an OCI spec"},
		"a huge config":   {stateOf("web", pid, newBundle(t, strings.Repeat(" ", configMost+1))), "is longer than"},
		"a process gone":  {stateOf("web", 77, good), `container "web": cannot raise memlock: the process has ended`},
		"a hostile name": {stateOf("a\nb\x1b"+strings.Repeat("c", 1000), 77, good), `container "a\nb\x1b` +
			strings.Repeat("c", 60) + `": cannot raise memlock`},
	} {
		t.Run(name, func(t *testing.T) {
			k := limitstest.NewKernel(map[string][]spec.Limit{ours: {low}, theirs: {low}})
			for want, args := range [][]string{nil, {"--required"}} {
				status, journal := call(k, strings.NewReader(test.state), args...)
				if status != want || len(journal) != 1 || !strings.Contains(journal[0], test.want) ||
					strings.Contains(journal[0], "\n") {
					t.Errorf("%v: exit status %d, journal %q, want %q", args, status, journal, test.want)
				}
			}
			if k.Soft(ours)[0] != low || k.Soft(theirs)[0] != low {
				t.Errorf("memlock is %s and %s", k.Soft(ours)[0], k.Soft(theirs)[0])
			}
		})
	}
}

// If the kernel refuses to raise the limit, as with rootless Podman, the hook reports an error.
func TestHook_refused(t *testing.T) {
	k := limitstest.NewKernel(map[string][]spec.Limit{ours: {low}})
	k.Refuse = errors.New("operation not permitted")
	status, journal := call(k, strings.NewReader(stateOf("web", pid, newBundle(t, configOf(ours, "")))))
	if status != 0 || len(journal) != 1 || !strings.HasSuffix(journal[0],
		"cannot raise memlock: operation not permitted") {
		t.Errorf("exit status %d, journal %q", status, journal)
	}
}

// If a runtime never closes the hook's standard input, the hook ends after 2 s.
func TestHook_timesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, args := range [][]string{nil, {"--wrong"}} {
			r, w := io.Pipe()
			began := time.Now()
			status, journal := callInTime(limitstest.NewKernel(nil), r, args...)
			if took := time.Since(began); status != 0 || took != 2*time.Second || len(journal) != 1 ||
				journal[0] != "timed out after 2s" {
				t.Errorf("exit status %d after %s, journal %q", status, took, journal)
			}
			_ = w.Close()
		}
	})
}

// FuzzState: whatever a runtime sends to the hook, the hook ends, and raises no process except the one that the state
// names.
func FuzzState(f *testing.F) {
	bundle := newBundle(f, configOf(ours, ""))
	for _, seed := range []string{"", "{}", stateOf("web", pid, "BUNDLE"), stateOf("web", pid+1, "BUNDLE"),
		`{"pid":1000,"bundle":"BUNDLE","annotations":{"io.kubernetes.cri.a":""}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		k := limitstest.NewKernel(map[string][]spec.Limit{ours: {low}, theirs: {low}})
		text = bytes.ReplaceAll(text, []byte("BUNDLE"), []byte(bundle))
		status, _ := call(k, bytes.NewReader(text))
		var s state
		unread := json.Unmarshal(text, &s) != nil
		raised := func(id string, pid int) bool { return k.Soft(id)[0] != low && (unread || s.PID != pid) }
		if status != 0 || raised(ours, pid) || raised(theirs, pid+1) {
			t.Errorf("exit status %d, memlock %s and %s", status, k.Soft(ours)[0], k.Soft(theirs)[0])
		}
	})
}
