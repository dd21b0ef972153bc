// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/containerd/nri/pkg/api"

	"github.com/rdma-spec/rdma-spec/plugin/nritest"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/child"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// asProgram, in the environment, has this test program be nri-rdma; as "nobody" it is so as a user to whom nothing
// belongs.
const asProgram = "NRI_RDMA_TEST_PROGRAM"

func TestMain(m *testing.M) {
	switch os.Getenv(asProgram) {
	case "":
		os.Exit(m.Run())
	case "nobody":
		if os.Getuid() == 0 {
			if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(65534), syscall.Setuid(65534)); err != nil {
				panic(err)
			}
		}
	}
	main()
}

func program(t *testing.T, user string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), asProgram+"="+user)
	return cmd
}

// What keeps the program from starting is told in one line, and it ends with 1.
func TestServe_badHTTPAddress(t *testing.T) {
	dir := scratch.Dir(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer func() { _ = taken.Close() }()
	socket := filepath.Join(dir, "no.sock")
	for address, want := range map[string]string{
		taken.Addr().String(): "--http 127.0.0.1:[0-9]+: bind: address already in use",
		"127.0.0.1":           "--http 127.0.0.1: address 127.0.0.1: missing port in address",
	} {
		out, err := program(t, "nobody", "--http", address, "--socket", socket).CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 || bytes.Count(out, []byte("\n")) != 1 ||
			!regexp.MustCompile(`level=error msg=".*`+want+": choose another ADDR, such as 127.0.0.1:9797").Match(out) {
			t.Errorf("%v, want exit status 1; it said:\n%s, want one line with %s", err, out, want)
		}
	}
}

// A service that cannot start is started again and again: nobody gets the connection of the one before.
func TestServe_failedStartRemovesConnection(t *testing.T) {
	path := filepath.Join(scratch.Dir(t), "notify")
	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	must.Succeed(t, err)
	defer func() { _ = systemd.Close() }()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	must.Succeed(t, err)
	connection, runtime := os.NewFile(uintptr(fds[0]), ""), os.NewFile(uintptr(fds[1]), "")
	defer func() { _, _ = connection.Close(), runtime.Close() }()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "LISTEN_PID=$$ exec "+os.Args[0]+" --http 127.0.0.1")
	cmd.Env = append(os.Environ(), asProgram+"=as it is", "NOTIFY_SOCKET="+path, "LISTEN_FDS=2",
		"LISTEN_FDNAMES=connection:state")
	cmd.ExtraFiles = []*os.File{connection, file(t, filepath.Join(scratch.Dir(t), "state"))}
	if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 1 {
		t.Fatalf("%v: %s", err, out)
	}
	awaitNotification(t, systemd, "FDSTOREREMOVE=1\nFDNAME=connection")
}

func TestVersionOnAFullDisk(t *testing.T) {
	cmd := program(t, "nobody", "--version")
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = deviceFull(t), &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.HasSuffix(stderr.String(),
		"no space left on device\n") {
		t.Errorf("%v, want exit status 1; stderr %q", err, stderr.String())
	}
}

func deviceFull(t *testing.T) *os.File {
	t.Helper()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	must.Succeed(t, err)
	t.Cleanup(func() { _ = full.Close() })
	return full
}

// A log that takes nothing neither ends the program nor holds up a container: each of these has a line for the log.
func TestPatientLog_blockedOutput(t *testing.T) {
	for name, stderr := range map[string]*os.File{"a full disk": deviceFull(t), "nobody reads": stuffedPipe(t),
		"the reader is gone": brokenPipe(t)} {
		t.Run(name, func(t *testing.T) {
			runtime := nritest.New(t, "containerd", "v2.4.2")
			runtime.Start(t)
			end := start(t, stderr, "--socket", runtime.Socket, "--root", hcatest.V100(t), "--log-level", "debug")
			await.That(t, await.Timeout, "registers", func() bool { return runtime.Synchronised() > 0 })
			ctr := &api.Container{Id: "c", Name: "main", Linux: holdsVerbs}
			for i := range linesKept + 200 { // more than are kept
				ctr.Id = fmt.Sprint("c", i)
				got, err := runtime.Create(t.Context(), &api.PodSandbox{Id: "s", Name: "p", Namespace: "ml"}, ctr)
				if err != nil || len(got.GetRlimits()) != 1 {
					t.Fatalf("container %d: %v, %v", i, got, err)
				}
			}
			end()
		})
	}
}

// start runs the program. What is returned has it end, which it must do well and soon.
func start(t *testing.T, stderr *os.File, args ...string) (end func()) {
	t.Helper()
	cmd := program(t, "as it is", args...)
	cmd.Stderr = stderr
	must.Succeed(t, child.Start(cmd))
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return func() {
		t.Helper()
		must.Succeed(t, cmd.Process.Signal(syscall.SIGTERM))
		if err := await.Receive(t, await.Timeout, "the end after the signal", ended); err != nil {
			t.Error(err)
		}
	}
}

func file(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.Create(name)
	must.Succeed(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func pipe(t *testing.T) (read, written *os.File) {
	t.Helper()
	read, written, err := os.Pipe()
	must.Succeed(t, err)
	t.Cleanup(func() { _, _ = read.Close(), written.Close() })
	return read, written
}

func brokenPipe(t *testing.T) *os.File {
	t.Helper()
	read, written := pipe(t)
	_ = read.Close() // that is what it is for
	return written
}

// stuffedPipe gives a pipe that takes no more, and whose other end is open.
func stuffedPipe(t *testing.T) *os.File {
	t.Helper()
	_, written := pipe(t)
	raw, err := written.SyscallConn()
	must.Succeed(t, err)
	var full error
	if err := raw.Write(func(fd uintptr) (done bool) {
		for full == nil {
			_, full = syscall.Write(int(fd), make([]byte, 4096))
		}
		return true
	}); err != nil || !errors.Is(full, syscall.EAGAIN) {
		t.Fatal(err, full)
	}
	return written
}

// What a log did not take is counted, and told when it takes lines again, which come whole.
func TestPatientLog_countsLostLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		read, written := io.Pipe()
		log := newPatientLog(written)
		const lines = 10 * linesKept
		for i := range lines {
			if n, err := fmt.Fprintf(log, "line %d %s\n", i, strings.Repeat("x", 100)); err != nil || n < 100 {
				t.Fatal(n, err)
			}
		}
		got := make(chan string)
		go func() {
			var text bytes.Buffer
			_, _ = text.ReadFrom(read) // until the other end is closed
			got <- text.String()
		}()
		log.Close()
		_ = written.Close()
		text := <-got
		whole := regexp.MustCompile(`(?m)^line \d+ x{100}$`).FindAllString(text, -1)
		lost := 0
		for _, told := range regexp.MustCompile(`(?m)^nri-rdma: log lines lost.*: (\d+)$`).FindAllStringSubmatch(text,
			-1) {
			n, err := strconv.Atoi(told[1])
			must.Succeed(t, err)
			lost += n
		}
		if lost == 0 || lost+len(whole) != lines || len(whole) < linesKept {
			t.Errorf("%d of %d lines arrived whole, and it is told that %d were lost", len(whole), lines, lost)
		}
	})
}
