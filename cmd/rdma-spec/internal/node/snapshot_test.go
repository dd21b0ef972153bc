// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// The log of this node is not that of a copy.
func TestKernelLogOfACopy(t *testing.T) {
	if _, err := readKernelLog(t.Context(), scratch.Dir(t)); err == nil || err.Error() != "the log is from another node" {
		t.Error(err)
	}
	log, err := readKernelLog(t.Context(), "/")
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrNotExist):
		t.Skip(err)
	case err != nil || log.Now <= 0 || log.Lines == nil:
		t.Errorf("%v: %+v", err, log)
	}
}

// What other users than root cannot see is unknown: neither the daemons nor the plugin are missing.
func TestSnapshot_otherUsers(t *testing.T) {
	if os.Geteuid() == 0 {
		again := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestSnapshot_otherUsers$")
		again.Dir, again.SysProcAttr = "/", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, err := again.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	if _, err := os.Readlink("/proc/1/exe"); err == nil {
		t.Skip("process 1 is this user's")
	}
	s := snapshot(t, Options{Root: "/"})
	_, runtimes := s.Runtimes()
	_, plugin := s.Plugin()
	_, kubelet := s.Kubelet()
	for _, err := range []error{runtimes, plugin, kubelet} {
		if err == nil || !strings.Contains(err.Error(), "root") {
			t.Error(err)
		}
	}
}

// A part is read once, and its timeout is its own: those who ask late wait no longer for it.
func TestSnapshot_readsPartsOnce(t *testing.T) {
	var asked atomic.Int32
	files := hcatest.Files{AnswersDir + "/what": `{"answer": "this"}`, AnswersDir +
		"/sick": `{"error": "no socket"}`, AnswersDir + "/slow": "garbage"}
	for name, root := range map[string]string{"live": hcatest.Files{"etc/": ""}.Root(t), "copy": files.Root(t)} {
		s := snapshot(t, Options{Root: root})
		what := cachedAnswer(s, "what", func(context.Context, string) (string, error) { asked.Add(1); return "this", nil })
		sick := cachedAnswer(s, "sick", func(context.Context, string) (string, error) { return "", errors.New("no socket") })
		synctest.Test(t, func(t *testing.T) {
			slow := cachedAnswer(s, "slow", func(ctx context.Context, _ string) (string, error) { <-ctx.Done(); return "", ctx.Err() })
			deaf := cachedAnswer(s, "deaf", func(context.Context, string) (string, error) { time.Sleep(time.Hour); return "", nil })
			for range 2 {
				if got, err := what(); err != nil || got != "this" {
					t.Errorf("%s: %q, %v", name, got, err)
				}
			}
			if _, err := sick(); err == nil || err.Error() != "no socket" {
				t.Errorf("%s: %v", name, err)
			}
			for _, late := range []func() (string, error){slow, deaf} {
				start := time.Now()
				if _, err := late(); err == nil || time.Since(start) > askRuntimesFor+askRuntimesFor/moment {
					t.Errorf("%s: %v after %s", name, err, time.Since(start))
				}
			}
			time.Sleep(time.Hour) // the deaf one ends
		})
	}
	if asked.Load() != 1 {
		t.Errorf("asked %d times", asked.Load())
	}
}

// Denials that auditd takes from the kernel's log are read from its own, with times as those of the kernel's.
func TestReadAudit(t *testing.T) {
	const denied = `type=AVC msg=audit(1700000000.500:77): avc:  denied  { open } for  path="/dev/infiniband/uverbs0"`
	root := hcatest.Files{"var/log/audit/audit.log": "type=SYSCALL msg=audit(1700000000.500:77): arch=c000003e\n" + denied +
		"\ntype=AVC msg=audit(soon:1): /dev/infiniband/rdma_cm\n"}.Root(t)
	got := readAudit(root, 5000, time.Unix(1700000100, 5e8))
	if len(got) != 1 || got[0].At != 4900 || got[0].Text !=
		`audit: type=1400 audit(1700000000.500:77): avc:  denied  { open } for path="/dev/infiniband/uverbs0"` {
		t.Errorf("%+v", got)
	}
	if got := readAudit(scratch.Dir(t), 5000, time.Now()); got != nil {
		t.Errorf("%+v", got)
	}
}

// What is late is said once, after a while, and only while somebody waits.
func TestSayLate(t *testing.T) {
	root := hcatest.Files{"etc/": ""}.Root(t)
	for takes, want := range map[time.Duration]string{
		ItemTimeout - 1: "",
		Daemons:         "rdma-spec: no response yet to the queries for slow: waiting up to 10s\n",
	} {
		s := snapshot(t, Options{Root: root, Timeout: Daemons})
		synctest.Test(t, func(t *testing.T) {
			slow := cachedAnswer(s, "slow.json", func(context.Context, string) (int, error) { time.Sleep(takes - 1); return 1, nil })
			quick := cachedAnswer(s, "quick.json", func(context.Context, string) (int, error) { return 1, nil })
			var said strings.Builder
			stop := s.SayLate(&said)
			_, _ = quick()
			if _, err := slow(); err != nil {
				t.Error(err)
			}
			stop()
			if said.String() != want {
				t.Errorf("%s: %q, want %q", takes, said.String(), want)
			}
		})
	}
}
