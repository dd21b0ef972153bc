// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// a is an entry of a hand-made archive, with whatever type and names.
type a struct {
	name    string
	kind    byte
	link    string
	content string
	size    int64 // what the header claims; 0 is the content's
}

// packed returns the text of a tar with the entries. One that claims more than it has ends early.
func packed(t testing.TB, entries ...a) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Linkname: e.link,
			Size: max(e.size, int64(len(e.content))), Mode: 0o777}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.content)); err != nil {
			t.Fatal(err)
		}
	}
	_ = w.Close() // fails for what ends early
	return out.Bytes()
}

func compressed(t testing.TB, text []byte) *bytes.Buffer {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &out
}

var node = []Entry{
	{Name: "sys/devices/pci/infiniband/mlx5_0/ports/1/state", Content: []byte("4: ACTIVE\n")},
	{Name: "sys/class/infiniband/mlx5_0", Link: "../../devices/pci/infiniband/mlx5_0"},
	{Name: "sys/devices/pci/infiniband/mlx5_0/device", Link: "../.."},
	{Name: "sys/class/infiniband-empty", Dir: true},
	{Name: "sys/dev/char/1:3", Link: "../../devices/gone"},
	{Name: "etc/empty"},
}

func TestWriteAndUnpack(t *testing.T) {
	var first, second bytes.Buffer
	turned := slices.Clone(node)
	slices.Reverse(turned)
	for out, entries := range map[*bytes.Buffer][]Entry{&first: node, &second: turned} {
		if err := Write(out, entries); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("the order of the entries shows in the archive")
	}
	dir := scratch.Dir(t)
	if err := Unpack(&first, dir); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(withDirs(node), tree(t, dir)); diff != "" {
		t.Errorf("-written +unpacked:\n%s", diff)
	}
	if text := scratch.Read(t, filepath.Join(dir, "sys/class/infiniband/mlx5_0/ports/1/state")); text != "4: ACTIVE\n" {
		t.Errorf("through the link: %q", text)
	}
}

// tree returns what is in a directory.
func tree(t testing.TB, dir string) (entries []Entry) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, found fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		below, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		e := Entry{Name: below}
		switch found.Type() {
		case fs.ModeDir:
			e.Dir = true
		case fs.ModeSymlink:
			e.Link, err = os.Readlink(name)
		case 0:
			e.Content, err = os.ReadFile(name)
			if len(e.Content) == 0 {
				e.Content = nil
			}
		default:
			t.Errorf("%s is of type %s", name, found.Type())
		}
		entries = append(entries, e)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	return entries
}

func TestUnpack_hostileArchives(t *testing.T) {
	etc := a{name: "etc/", kind: tar.TypeDir}
	for name, tc := range map[string]struct {
		entries []a
		want    string
	}{
		"a path that leads out": {[]a{{name: "../x", kind: tar.TypeReg}}, `"../x" is not a path inside the support bundle`},
		"a path that leads out later": {[]a{etc, {name: "etc/../../x", kind: tar.TypeReg}},
			"is not a path inside the support bundle"},
		"an absolute path": {[]a{{name: "/etc/x", kind: tar.TypeReg}}, "is not a path inside the support bundle"},
		"an absolute link": {[]a{{name: "x", kind: tar.TypeSymlink, link: "/etc/passwd"}},
			"cannot be followed inside the support bundle"},
		"a link that leads out": {[]a{etc, {name: "etc/x", kind: tar.TypeSymlink, link: "../../etc"}},
			"cannot be followed inside the support bundle"},
		"links that lead out together": {[]a{
			etc, {name: "top", kind: tar.TypeDir}, {name: "etc/a", kind: tar.TypeDir}, {name: "etc/a/b", kind: tar.TypeDir},
			{name: "etc/a/b/up", kind: tar.TypeSymlink, link: "../../../top"},
			{name: "out", kind: tar.TypeSymlink, link: "etc/a/b/up/../.."},
		}, `"out": the link cannot be followed inside the support bundle`},
		"links in a circle": {[]a{{name: "x", kind: tar.TypeSymlink, link: "y"}, {name: "y", kind: tar.TypeSymlink,
			link: "x"}}, "cannot be followed"},
		"a file through a link": {[]a{etc, {name: "x", kind: tar.TypeSymlink, link: "etc"},
			{name: "x/y", kind: tar.TypeReg}}, "the parent directory is missing from the support bundle, or is a link"},
		"a file in place of a link": {[]a{{name: "x", kind: tar.TypeSymlink, link: "y"},
			{name: "x", kind: tar.TypeReg}}, "file exists"},
		"a hard link": {[]a{{name: "x", kind: tar.TypeLink, link: "/etc/passwd"}},
			"not a directory, a regular file, or a link"},
		"a character device": {[]a{{name: "x", kind: tar.TypeChar}},
			"not a directory, a regular file, or a link"},
		"a block device": {[]a{{name: "x", kind: tar.TypeBlock}},
			"not a directory, a regular file, or a link"},
		"a FIFO": {[]a{{name: "x", kind: tar.TypeFifo}},
			"not a directory, a regular file, or a link"},
		"a giant file":           {[]a{{name: "x", kind: tar.TypeReg, size: MaxFile + 1}}, "is larger than 33554432 bytes"},
		"a file that ends early": {[]a{{name: "x", kind: tar.TypeReg, size: 100}}, "unexpected EOF"},
		"a long path": {[]a{{name: strings.Repeat("x/", maxPath) + "x", kind: tar.TypeReg}},
			fmt.Sprintf("the path or the link target of %q is longer than 1024 bytes", strings.Repeat("x/", 40))},
		"a file twice": {[]a{{name: "x", kind: tar.TypeReg}, {name: "x", kind: tar.TypeReg}}, "file exists"},
	} {
		t.Run(name, func(t *testing.T) {
			above := scratch.Dir(t, "node")
			err := Unpack(compressed(t, packed(t, tc.entries...)), filepath.Join(above, "node"))
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, tc.want)
			}
			if found, err := os.ReadDir(above); err != nil || len(found) != 1 {
				t.Errorf("beside the directory: %v, %v", found, err)
			}
		})
	}
}

func TestArchivesAreBounded(t *testing.T) {
	many := make([]Entry, MaxEntries+1)
	for i := range many {
		many[i].Name = strings.Repeat("x", i%500+1) + string(rune('a'+i/500%26)) + string(rune('a'+i/500/26))
	}
	large := make([]byte, MaxFile)
	var heavy []Entry
	for i := range MaxTotal / MaxFile {
		heavy = append(heavy, Entry{Name: strings.Repeat("x", i+1), Content: large})
	}
	for want, entries := range map[string][]Entry{
		"the support bundle has more than 200000 entries":   many,
		"the support bundle is larger than 268435456 bytes": heavy,
		"is larger than 33554432 bytes":                     {{Name: "x", Content: make([]byte, MaxFile+1)}},
		"occurs twice":                                      {{Name: "x"}, {Name: "x"}},
		"is not a path inside the support bundle":           {{Name: "x/../../y"}},
	} {
		if err := Write(&bytes.Buffer{}, entries); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	// Zeros behind the last entry, and headers, are in no entry's size.
	const limit = 1 << 20
	padded := append(packed(t, a{name: "x", kind: tar.TypeReg}), make([]byte, limit)...)
	if err := unpack(compressed(t, padded), scratch.Dir(t), limit); err == nil || !strings.Contains(err.Error(),
		"the support bundle is larger than 1048576 bytes") {
		t.Errorf("with a mebibyte of zeros: error %v", err)
	}
}

func TestOpen(t *testing.T) {
	for _, root := range []string{"/", scratch.Dir(t), "/nonexistent"} {
		dir, remove, err := Open(root)
		if err != nil || dir != root {
			t.Errorf("%s: %s, %v", root, dir, err)
		}
		if err := remove(); err != nil {
			t.Error(err)
		}
	}
	temporary := scratch.Dir(t)
	t.Setenv("TMPDIR", temporary)
	var text bytes.Buffer
	if err := Write(&text, node); err != nil {
		t.Fatal(err)
	}
	good, bad := filepath.Join(scratch.Dir(t), "node.tar.gz"), filepath.Join(scratch.Dir(t), "bad.tar.gz")
	for file, content := range map[string][]byte{good: text.Bytes(), bad: text.Bytes()[:text.Len()/2]} {
		scratch.File(t, file, string(content), 0o600)
	}
	dir, remove, err := Open(good)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(withDirs(node), tree(t, dir)); diff != "" {
		t.Errorf("-written +unpacked:\n%s", diff)
	}
	if err := remove(); err != nil {
		t.Error(err)
	}
	if _, _, err := Open(bad); err == nil || !strings.HasPrefix(err.Error(),
		"cannot unpack the support bundle "+bad+": ") {
		t.Errorf("half an archive: %v", err)
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// archiveVariable names the archive that a process of TestOpen_Interrupted opens.
const archiveVariable = "RDMA_SPEC_TEST_ARCHIVE"

// TestOpen_Interrupted: a signal leaves nothing behind, while the archive is unpacked or afterwards, and ends the
// program.
func TestOpen_Interrupted(t *testing.T) {
	if file := os.Getenv(archiveVariable); file != "" {
		openAndWrite(file)
	}
	entries := make([]Entry, 5000)
	for i := range entries {
		entries[i] = Entry{Name: fmt.Sprintf("etc/%d", i), Content: []byte("x")}
	}
	var text bytes.Buffer
	must.Succeed(t, Write(&text, entries))
	file := filepath.Join(scratch.Dir(t), "node.tar.gz")
	scratch.File(t, file, text.String(), 0o600)
	for _, end := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE} {
		if signal.Ignored(end) {
			continue // under nohup, the child inherits the ignored SIGHUP, and would never exit
		}
		t.Run(end.String(), func(t *testing.T) {
			temporary := scratch.Dir(t)
			child := exec.Command(os.Args[0], "-test.run=^TestOpen_Interrupted$")
			child.Env = append(os.Environ(), archiveVariable+"="+file, "TMPDIR="+temporary)
			output, err := child.StdoutPipe()
			must.Succeed(t, err)
			must.Succeed(t, child.Start())
			await.That(t, await.Timeout, "unpacked a file", func() bool {
				found, err := filepath.Glob(temporary + "/*/etc/*")
				return err == nil && len(found) > 0
			})
			if end == syscall.SIGPIPE {
				must.Succeed(t, output.Close())
			} else {
				must.Succeed(t, child.Process.Signal(end))
			}
			_ = child.Wait() // it ends with an error: see its state
			state, _ := child.ProcessState.Sys().(syscall.WaitStatus)
			if (!state.Signaled() || state.Signal() != end) && state.ExitStatus() != 128+int(end) {
				t.Errorf("it ended with %v", child.ProcessState)
			}
			if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

// openAndWrite opens an archive and writes without an end.
func openAndWrite(file string) {
	if _, _, err := Open(file); err != nil {
		os.Exit(3)
	}
	for {
		if _, err := fmt.Println("read"); err != nil {
			select {} // until the signal ends the program
		}
	}
}
