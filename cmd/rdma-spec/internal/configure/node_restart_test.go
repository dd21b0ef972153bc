// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// fakeRuntime answers as long as its configuration can be loaded.
type fakeRuntime struct {
	interrupted bool // the first restart takes until somebody types Ctrl-C
	file, unit  string
	breaks      bool // each restart but the first finds a good file, the first one a broken file
	restarts    int
	theirs      string // what another tool makes of the file at each restart
}

func (f *fakeRuntime) Restart(ctx context.Context, _ string) error {
	if f.theirs != "" {
		return os.WriteFile(f.file, []byte(f.theirs), 0o600)
	}
	if f.restarts++; f.interrupted && f.restarts == 1 {
		if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (f *fakeRuntime) Running(context.Context) ([]string, error) {
	text, err := os.ReadFile(f.file)
	if err == nil && f.breaks && strings.Contains(string(text), "rdma-spec") {
		err = errors.New("connection refused")
	}
	return []string{"a", "b"}, err
}

func (f *fakeRuntime) Ended(context.Context, []string) (int, error) { return 0, nil }

// restarting has a runtime restarted within a time, for what the options say; writes and reads go there.
func restarting(t *testing.T, o *Options, runtime *fakeRuntime, within time.Duration) (cmd *cobra.Command,
	stderr *strings.Builder) {
	t.Helper()
	runtime.file = filepath.Join(o.Root, "etc/containerd/config.toml")
	o.Restarts = func(unit string) *Restart {
		runtime.unit = unit
		return &Restart{Unit: unit, Node: runtime, Within: within, Every: 1e6}
	}
	cmd, stderr = &cobra.Command{}, &strings.Builder{}
	cmd.SetContext(t.Context())
	cmd.SetOut(io.Discard)
	cmd.SetErr(stderr)
	return cmd, stderr
}

// configureAndRestart turns NRI on below a root, and restarts a runtime for that.
func configureAndRestart(t *testing.T, root string, runtime *fakeRuntime, within time.Duration) error {
	t.Helper()
	o := &Options{Root: root, Restart: true}
	cmd, _ := restarting(t, o, runtime, within)
	return o.carryOut(cmd, func() (configured, error) { return o.nri(t.Context(), RuntimeContainerd, false) })
}

// A runtime that does not come back has its files restored, and is restarted once more.
func TestConfigureRestart(t *testing.T) {
	for name, breaks := range map[string]bool{"comes back": false, "does not come back": true} {
		t.Run(name, func(t *testing.T) {
			root, before := configureNode(t)
			runtime := &fakeRuntime{breaks: breaks}
			err := configureAndRestart(t, root, runtime, 50e6)
			switch {
			case !breaks && (err != nil || runtime.restarts != 1):
				t.Errorf("%d restarts, %v", runtime.restarts, err)
			case breaks && (err == nil || runtime.restarts != 2 || !strings.HasSuffix(err.Error(),
				"the files were restored, and containerd.service is running as before")):
				t.Errorf("%d restarts, %v", runtime.restarts, err)
			case breaks:
				unchanged(t, root, before, "afterwards")
			}
		})
	}
}

// Where another tool changes a file while the runtime restarts, its change stays, and nothing says that all is
// restored.
func TestConfigureRestartWhileAnotherToolWrites(t *testing.T) {
	root, _ := configureNode(t)
	runtime := &fakeRuntime{breaks: true, theirs: "version = 3 # rdma-spec no longer\n"}
	err := configureAndRestart(t, root, runtime, 50e6)
	const changed = ": the file has changed in the meantime"
	if err == nil || !strings.Contains(err.Error(), "not restored: cannot write "+runtime.file+changed) ||
		!strings.Contains(err.Error(), "some files were not restored") || strings.Contains(err.Error(), "the files were restored") {
		t.Errorf("%v", err)
	}
	if text, err := os.ReadFile(runtime.file); err != nil || string(text) != runtime.theirs {
		t.Errorf("%v, %s", err, text)
	}
}

// Ctrl-C puts the files back, and restarts the runtime with them.
func TestConfigureInterrupted(t *testing.T) {
	root, before := configureNode(t)
	runtime := &fakeRuntime{interrupted: true}
	err := configureAndRestart(t, root, runtime, time.Minute)
	const want = "interrupted while containerd.service was restarting: the files were restored, and " +
		"containerd.service is running as before"
	if err == nil || err.Error() != want || runtime.restarts != 2 {
		t.Errorf("%d restarts, %v", runtime.restarts, err)
	}
	unchanged(t, root, before, "afterwards")
}

// The time of a restart is what the unit allows for a stop and a start.
func TestUnitTime(t *testing.T) {
	dir := scratch.Dir(t)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for said, want := range map[string]time.Duration{"1min 30s\n1min 30s\n": 3 * time.Minute, "infinity\n1min 30s\n": unbounded,
		"500ms\n2h 5min\n": 2*time.Hour + 5*time.Minute + 500*time.Millisecond, "": unbounded} {
		scratch.File(t, filepath.Join(dir, "systemctl"), "#!/bin/sh\ncat <<'E'\n"+said+"E\n", 0o700)
		if got := (&Options{}).nodeRestart("x.service").Within; got != want {
			t.Errorf("%q: %s, want %s", said, got, want)
		}
		if got := (&Options{timeout: time.Second}).nodeRestart("x.service").Within; got != time.Second {
			t.Errorf("--restart-timeout: %s", got)
		}
	}
}

// With --restart, what is left to do is what a restart of the runtime does not do.
func TestConfigureAllRestartsAndSaysWhatIsLeft(t *testing.T) {
	for _, restart := range []bool{false, true} {
		root, _ := configureNode(t)
		runtime, o := &fakeRuntime{}, &Options{Root: root, Restart: restart}
		cmd, stderr := restarting(t, o, runtime, 50e6)
		if err := o.carryOut(cmd, func() (configured, error) {
			return o.configureAll(cmd, "", programs{filepath.Join(root, "nri-rdma"), usrLocal})
		}); err != nil {
			t.Fatal(err)
		}
		want, restarts := "rdma-spec: next: systemctl daemon-reload\nrdma-spec: next: systemctl enable "+
			"nri-rdma\nrdma-spec: next: systemctl restart nri-rdma\n", 1
		if !restart {
			want, restarts = want+"rdma-spec: next: systemctl restart containerd.service\n", 0
		}
		if diff := cmp.Diff(want, stderr.String()); diff != "" || runtime.restarts != restarts {
			t.Errorf("--restart=%t: %d restarts (-want +got):\n%s", restart, runtime.restarts, diff)
		}
	}
}

// A daemon whose files do not change is not restarted. It can be older than they are, so the command says it.
func TestConfigureSaysThatItDoesNotRestart(t *testing.T) {
	const said = "rdma-spec: did not restart the daemon, because none of its files changed; if the daemon has not " +
		"been restarted since the last change, run: "
	const restart = "systemctl restart containerd.service\n"
	for args, want := range map[string]string{
		"nri":                           said + restart,
		"handler runc --in-place":       said + restart,
		"limits":                        said + "systemctl daemon-reload && " + restart,
		"--all --program ROOT/nri-rdma": said + restart,
		"--all --program ROOT/newer-rdma": said + restart +
			"rdma-spec: next: systemctl daemon-reload\nrdma-spec: next: systemctl enable nri-rdma\nrdma-spec: next: systemctl " +
			"restart nri-rdma\n",
	} {
		t.Run(args, func(t *testing.T) {
			root, _ := configureNode(t)
			scratch.File(t, filepath.Join(root, "newer-rdma"), "\x7fELF\x01", 0o600)
			done(t, root, strings.ReplaceAll(args, "newer-rdma", "nri-rdma"))
			second := strings.Fields(strings.ReplaceAll("configure "+args+" --restart --root ROOT", "ROOT", root))
			if got := callOn(root, second...); got.Status != 0 || got.Stderr != want {
				t.Errorf("%+v, want %s", got, want)
			}
		})
	}
}

// --revert --restart restarts the daemon that reads the files, and no other.
func TestConfigureRevertRestarts(t *testing.T) {
	for name, test := range map[string]struct {
		configured []string
		unit       string
	}{
		"nri":            {[]string{"nri"}, "containerd.service"},
		"limits":         {[]string{"limits docker"}, "docker.service"},
		"nri and limits": {[]string{"nri", "limits containerd"}, "containerd.service"},
		"plugin":         {[]string{"plugin --program ROOT/nri-rdma"}, ""},
		"all":            {[]string{"--all --program ROOT/nri-rdma"}, "containerd.service"},
		"launched":       {[]string{"plugin --launched --program ROOT/nri-rdma"}, "containerd.service"},
		"two daemons": {[]string{"nri", "limits docker"},
			"error: --restart can restart only one service, but the files belong to containerd.service, docker.service"},
	} {
		t.Run(name, func(t *testing.T) {
			root, _ := configureNode(t)
			scratch.File(t, filepath.Join(root, "usr/lib/systemd/system/docker.service"), "", 0o600)
			for _, args := range test.configured {
				done(t, root, args)
			}
			runtime, o := &fakeRuntime{}, &Options{Root: root, Revert: true, Restart: true}
			cmd, _ := restarting(t, o, runtime, 50e6)
			err := o.revertFeatures(cmd)
			if wanted, isError := strings.CutPrefix(test.unit, "error: "); isError {
				if err == nil || !strings.Contains(err.Error(), wanted) || runtime.unit != "" {
					t.Errorf("%s is restarted, %v; want %s", runtime.unit, err, wanted)
				}
			} else if err != nil || runtime.unit != test.unit || runtime.restarts != min(1, len(test.unit)) {
				t.Errorf("%q is restarted %d times, %v; want %q", runtime.unit, runtime.restarts, err, test.unit)
			}
		})
	}
}
