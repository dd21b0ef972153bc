// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/test/testing/child"
	"github.com/rdma-spec/rdma-spec/test/testing/expect"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/output"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

var (
	idA = strings.Repeat("a1", 32)
	idB = strings.Repeat("b2", 32)
)

func TestContainerOf(t *testing.T) {
	for name, test := range map[string]struct{ cgroup, want string }{
		"containerd, cgroupfs driver": {"0::/kubepods/burstable/pod8f3c/" + idA + "\n", idA},
		"containerd, systemd driver": {"0::/kubepods.slice/kubepods-pod8f3c.slice/cri-containerd-" + idA + ".scope\n",
			idA},
		"containerd, drivers mixed up": {"0::/system.slice/kubepods-pod8f3c.slice:cri-containerd:" + idA + "\n", idA},
		"CRI-O":                        {"0::/kubepods.slice/crio-" + idA + ".scope/container\n", idA},
		"CRI-O, its monitor":           {"0::/kubepods.slice/crio-conmon-" + idA + ".scope\n", ""},
		"no pod":                       {"0::/k8s.io/" + idA + "\n", idA},
		"version 1": {"12:pids:/kubepods/pod8f3c/" + idA +
			"\n11:memory:/kubepods/pod8f3c/" + idA + "\n0::/\n", idA},
		"version 1 and 2": {"2:cpu,cpuacct:/\n1:name=systemd:/kubepods/" + idA +
			"\n0::/kubepods/" + idA + "\n", idA},
		"from within another namespace": {"0::/../../burstable/pod8f3c/cri-containerd-" + idA + ".scope\n", idA},
		"a cgroup of its own":           {"0::/kubepods/" + idA + "/init.scope\n", idA},
		"a container in the container":  {"0::/kubepods/" + idA + "/docker/" + idB + "\n", idA},
		"removed":                       {"0::/kubepods/" + idA + " (deleted)\n", idA},
		"no newline":                    {"0::/kubepods/" + idA, idA},
		"a colon in the path":           {"0::/a:b/" + idA + "\n", idA},
		"none":                          {"0::/system.slice/ssh.service\n", ""},
		"a user's own cgroup": {"0::/user.slice/user-1000.slice/user@1000.service/cri-containerd-" + idA +
			".scope\n", ""},
		"the root":     {"0::/\n", ""},
		"nothing":      {"", ""},
		"nonsense":     {"kubepods/" + idA, ""},
		"too short":    {"0::/kubepods/" + idA[1:] + "\n", ""},
		"too long":     {"0::/kubepods/0" + idA + "\n", ""},
		"upper case":   {"0::/kubepods/" + strings.ToUpper(idA) + "\n", ""},
		"no hex":       {"0::/kubepods/g" + idA[1:] + "\n", ""},
		"another unit": {"0::/kubepods/" + idA + ".service\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := containerOf([]byte(test.cgroup)); got != test.want {
				t.Errorf("container %q, want %q", got, test.want)
			}
		})
	}
}

func FuzzContainerOf(f *testing.F) {
	f.Add("0::/kubepods.slice/kubepods-pod8f3c.slice/cri-containerd-" + idA + ".scope\n")
	f.Add("12:pids:/kubepods/pod8f3c/" + idA + "\n0::/\n")
	f.Add("0::/../crio-conmon-" + idA + ".scope (deleted)")
	f.Fuzz(func(t *testing.T, text string) {
		id := containerOf([]byte(text))
		if id == "" {
			return
		}
		if len(id) != idLength || !strings.Contains(text, id) {
			t.Errorf("container %q", id)
		}
		// What the container itself appends to its path has no effect.
		if below := strings.TrimSuffix(strings.TrimSuffix(text, "\n"), " (deleted)") + "/" + idB; strings.Count(text,
			"\n") <= 1 && containerOf([]byte(below)) != id {
			t.Errorf("in a cgroup of its own: container %q, was %q", containerOf([]byte(below)), id)
		}
	})
}

const limitsText = `Limit                     Soft Limit           Hard Limit           Units     
Max cpu time              unlimited            unlimited            seconds   
Max locked memory         8388608              unlimited            bytes     
Max address space         unlimited            unlimited            bytes     
`

func TestMemlockOfAText(t *testing.T) {
	for text, want := range map[string]any{
		limitsText: spec.Rlimit{Soft: 8 << 20, Hard: spec.Unlimited},
		"Max locked memory         0                    65536                bytes     \n": spec.Rlimit{Hard: 65536},
		"Max locked memory         65536                9223372036854775807  bytes     \n": spec.Rlimit{Soft: 65536,
			Hard: spec.Unlimited},
		"Max open files            1024                 65536                files     \n": "no line for Max locked " +
			"memory",
		"Max locked memory         65536\n": "expected a soft and a hard " +
			"limit",
		"Max locked memory         -1 65536 bytes\n": "invalid syntax",
		"": "no line for Max locked memory",
	} {
		got, err := parseLimit([]byte(text), memlockLine)
		if message, bad := want.(string); bad {
			if err == nil || !strings.Contains(err.Error(), message) {
				t.Errorf("%q: error %v, want %q", text, err, message)
			}
		} else if err != nil || got != want {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
}

// FuzzParse: a parser returns the value in the first line of its kind, or an error without a value.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		limitsText, "Max locked memory         8388608              unlimited\n",
		"Max locked memory 1 99999999999999999999 bytes\n", "Max locked memory 1 x\nMax locked memory 1 2",
		"Name:\tsh\nTgid:\t42\nCapEff:\t000001ffffffffff\n", "CapEff:\t1ffffffffffffffff\n", "CapEff: \nCapEff: 1\n",
		"Tgid:\t99999999999999999999", "Tgid:\t-1\n",
		"         0          0 4294967295\n", "0 0 4294967295\n0 0 4294967295\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		limit, err := parseLimit([]byte(text), memlockLine)
		if words := strings.Fields(firstLine(text, "Max locked memory ")); err == nil &&
			(len(words) < 2 || !means(words[0], limit.Soft) || !means(words[1], limit.Hard)) {
			t.Errorf("memlock %v of %q", limit, words)
		} else if err != nil && limit != (spec.Rlimit{}) {
			t.Errorf("memlock %v with error %v", limit, err)
		}
		set, err := numberAfter([]byte(text), "CapEff:", 16, 64)
		if value := firstLine(text, "CapEff:"); err == nil && !means(strings.ToLower(value), fmt.Sprintf("%x", set)) ||
			err != nil && set != 0 {
			t.Errorf("capabilities %x of %q, error %v", set, value, err)
		}
		tgid, err := numberAfter([]byte(text), "Tgid:", 10, 31)
		if value := firstLine(text, "Tgid:"); err == nil && !means(value, tgid) || err != nil && tgid != 0 {
			t.Errorf("process %d of %q, error %v", tgid, value, err)
		}
		var inside, outside, length uint64
		if n, _ := fmt.Sscan(text, &inside, &outside, &length); allUIDs([]byte(text)) && (n != 3 || inside != 0 ||
			outside != 0 || length != math.MaxUint32) {
			t.Errorf("%q is taken for a map of all users to themselves", text)
		}
	})
}

// firstLine returns the rest of the first line that has a prefix.
func firstLine(text, prefix string) string {
	_, rest, found := strings.Cut("\n"+text, "\n"+prefix)
	if !found {
		return ""
	}
	line, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(line)
}

// means reports whether a word from the kernel, which can have leading zeros, is the text of a value.
func means(word string, value any) bool {
	if limit, ok := value.(spec.Limit); ok {
		if n, err := strconv.ParseUint(word, 10, 64); word == "unlimited" || err == nil && n >= math.MaxInt64 {
			return limit == spec.Unlimited
		}
		value = uint64(limit)
	}
	trimmed := strings.TrimLeft(word, "0")
	return trimmed == fmt.Sprint(value) || trimmed == "" && word != "" && fmt.Sprint(value) == "0"
}

// files returns the processes that a proc directory with these files shows.
func files(t *testing.T, contents map[string]string) *Processes {
	t.Helper()
	root := scratch.Dir(t)
	scratch.Files(t, filepath.Join(root, "proc"), contents, 0o644)
	return New(root)
}

func TestProcessesOfACopy(t *testing.T) {
	p := files(t, map[string]string{
		"7/cgroup": "0::/kubepods/" + idA + "\n", "7/limits": limitsText, "7/status": "Name:\ta\nCapEff:\t0000000000004000\n",
		"7/uid_map": "         0          0 4294967295\n",
		"10/cgroup": "0::/kubepods/" + idA + "/sub\n", "10/limits": limitsText, "10/status": "CapEff:\t00000000a80425fb\n",
		"10/uid_map": "0 100000 65536\n",
		"9/cgroup":   "0::/kubepods/" + idB + "\n", "9/limits": "",
		"1/cgroup": "0::/init.scope\n", "self": "-> 44", "loadavg": "0",
	})
	found, err := p.Containers()
	must.Succeed(t, err)
	expect.Equal(t, "containers", map[string][]int{idA: {7, 10}, idB: {9}}, found)
	limit := spec.Rlimit{Soft: 8 << 20, Hard: spec.Unlimited}
	for pid, want := range map[int]Process{7: {Memlock: limit, IPCLock: true}, 10: {Memlock: limit, UserNamespace: true}} {
		if got, err := p.Process(pid); err != nil || got != want {
			t.Errorf("process %d: %+v, %v, want %+v", pid, got, err, want)
		}
	}
	if _, err := p.Process(9); err == nil || err.Error() != "the process has ended" {
		t.Errorf("an ended process: %v", err)
	}
	if _, err := p.Process(8); !os.IsNotExist(err) {
		t.Errorf("no process: %v", err)
	}
	if err := p.Visible(); err != nil {
		t.Errorf("a copy: %v", err)
	}
	outcome := p.Raise(t.Context(), map[string]spec.Limit{idA: spec.Unlimited})[idA]
	if outcome.Raised != 0 || outcome.Err == nil || !strings.Contains(outcome.Err.Error(),
		"belongs to another PID namespace") {
		t.Errorf("processes of a copy were changed: %+v", outcome)
	}
	if _, err := New(scratch.Dir(t)).Containers(); !os.IsNotExist(err) {
		t.Errorf("no proc: %v", err)
	}
}

// The process of a container that has just started is found with a few reads, among 3,000 other processes.
func TestNewest(t *testing.T) {
	k := &counted{cgroups: map[int]string{3001: idA, 3002: "", 3003: idB}}
	for pid := range 3000 {
		k.cgroups[pid+1] = idB
	}
	for container, want := range map[string]struct{ pid, reads int }{
		idB: {3003, 1}, idA: {3001, 3}, strings.Repeat("c", 64): {0, 3003},
	} {
		k.reads = 0
		pid, err := On(k).Newest(container)
		must.Succeed(t, err)
		if pid != want.pid || k.reads > want.reads {
			t.Errorf("%.2s…: process %d by %d reads, want %d by %d", container, pid, k.reads, want.pid, want.reads)
		}
	}
}

// counted is a kernel that counts reads.
type counted struct {
	Kernel
	cgroups map[int]string // the container of each process
	reads   int
}

func (k *counted) PIDs() ([]int, error) { return slices.Sorted(maps.Keys(k.cgroups)), nil }

func (k *counted) Read(pid int, name string) ([]byte, error) {
	k.reads++
	if name != "cgroup" {
		return nil, os.ErrNotExist
	}
	return []byte("0::/kubepods/" + k.cgroups[pid] + "\n"), nil
}

// CAP_IPC_LOCK lets a process register all memory only in the kernel's first user namespace. Another namespace can also
// map all users to themselves.
func TestRegisters(t *testing.T) {
	const all, none, first = "0000000000004000", "0000000000000000", "-> user:[4026531837]"
	for name, test := range map[string]struct {
		effective, namespace, users string
		want                        spec.Limit
	}{
		"in the first one":                          {all, first, "0 0 4294967295\n", spec.Unlimited},
		"without the capability":                    {none, first, "0 0 4294967295\n", 8 << 20},
		"in another one that maps all users":        {all, "-> user:[4026532201]", "0 0 4294967295\n", 8 << 20},
		"in another one":                            {all, "-> user:[4026532201]", "0 100000 65536\n", 8 << 20},
		"in an unknown one that maps all users":     {all, "", "0 0 4294967295\n", spec.Unlimited},
		"in an unknown one that maps some":          {all, "", "0 100000 65536\n", 8 << 20},
		"of a kernel that has no user namespaces":   {all, "", "", spec.Unlimited},
		"in an unknown one, without the capability": {none, "", "", 8 << 20},
	} {
		tree := map[string]string{"7/limits": limitsText + "Max open files   1024   524288   files\n",
			"7/status": "CapEff:\t" + test.effective + "\n"}
		for file, content := range map[string]string{"7/uid_map": test.users, "7/ns/user": test.namespace} {
			if content != "" {
				tree[file] = content
			}
		}
		got, err := files(t, tree).Process(7)
		if err != nil || got.Registers() != test.want || got.Files != (spec.Rlimit{Soft: 1024, Hard: 524288}) {
			t.Errorf("%s: %s, %+v, %v, want %s", name, got.Registers(), got, err, test.want)
		}
	}
}

func TestVisible(t *testing.T) {
	for name, test := range map[string]struct {
		files map[string]string
		want  error
	}{
		"on the node": {map[string]string{"2/comm": "kthreadd\n", "1/cgroup": "0::/\n", "self": "-> 5",
			"5/cgroup": "0::/\n"}, nil},
		"in a node that is a container": {map[string]string{"1/cgroup": "0::/init.scope\n", "self": "-> 5",
			"5/cgroup": "0::/kubelet/kubepods/x\n"}, nil},
		"in a container of its own": {map[string]string{"1/cgroup": "0::/\n", "self": "-> 5",
			"5/cgroup": "0::/\n"}, ErrHidden},
		"on a node that is a container (kind, k3d)": {map[string]string{
			"1/cgroup": "0::/init.scope\n", "self": "-> 5", "5/cgroup": "0::/init.scope\n",
			"7/cgroup": "0::/kubelet.slice/kubelet-kubepods.slice/cri-containerd-" + idA + ".scope\n",
		}, nil},
		"in a container among its children": {map[string]string{
			"1/cgroup": "0::/kubepods/" + idA + "\n", "self": "-> 5", "5/cgroup": "0::/kubepods/" + idA + "\n",
			"6/cgroup": "0::/kubepods/" + idA + "/x\n",
		}, ErrHidden},
		"in a container as the only one": {map[string]string{"self": "-> 1", "1/cgroup": "0::/kubepods/" +
			idA + "\n"}, ErrHidden},
		"with a shared namespace of a pod": {map[string]string{"1/cgroup": "0::/../" + idB + "\n", "self": "-> 5",
			"5/cgroup": "0::/\n"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if err := files(t, test.files).Visible(); err != test.want { //nolint:errorlint // it is the very error
				t.Errorf("%v, want %v", err, test.want)
			}
		})
	}
}

// /proc reports the same about this process as the system calls.
func TestProcesses_thisProcess(t *testing.T) {
	p := New("/")
	var limit unix.Rlimit
	must.Succeed(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit))
	got, err := p.Process(os.Getpid())
	if want := (spec.Rlimit{Soft: spec.Limit(limit.Cur), Hard: spec.Limit(limit.Max)}); err != nil || got.Memlock != want {
		t.Errorf("%+v, %v, want %v", got, err, want)
	}
	if _, err := p.Containers(); err != nil {
		t.Error(err)
	}
	if p.kernel.Self() != os.Getpid() {
		t.Errorf("self is %d", p.kernel.Self())
	}
	if err := p.kernel.Changeable(); err != nil {
		t.Error(err)
	}
}

// A process in another PID namespace has a different ID there.
func TestProcOfAnotherNamespaceIsNotChanged(t *testing.T) {
	inOwnPIDNamespace(t, func(t *testing.T) {
		// The proc of the outer namespace is still mounted.
		if err := New("/").kernel.Changeable(); err == nil || !strings.Contains(err.Error(),
			"belongs to another PID namespace") {
			t.Errorf("changeable: %v", err)
		}
	})
}

// inOwnPIDNamespace runs a test in the first process of a new PID namespace.
func inOwnPIDNamespace(t *testing.T, test func(*testing.T)) {
	t.Helper()
	const variable = "LIMITS_TEST_NAMESPACE"
	if os.Getenv(variable) == t.Name() {
		test(t)
		return
	}
	command := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.count=1")
	command.Env = append(os.Environ(), variable+"="+t.Name())
	command.SysProcAttr = namespaces()
	var out output.Buffer
	command.Stdout, command.Stderr = &out, &out
	must.Succeed(t, child.Start(command))
	if err := command.Wait(); err != nil {
		t.Errorf("%v:\n%s", err, out.String())
	}
}
