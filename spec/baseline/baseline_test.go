// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/rdma-spec/rdma-spec/test/testing/expect"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
)

func parsed(t *testing.T, text []byte) *specs.Spec {
	t.Helper()
	var s specs.Spec
	must.Succeed(t, json.Unmarshal(text, &s))
	return &s
}

func mustDefault(t *testing.T) []byte {
	t.Helper()
	text, err := Default()
	must.Succeed(t, err)
	return text
}

func TestDefaultGolden(t *testing.T) {
	s := parsed(t, mustDefault(t))
	// containerd masks a directory for each CPU that has one on this machine.
	s.Linux.MaskedPaths = slices.DeleteFunc(s.Linux.MaskedPaths,
		func(p string) bool { return strings.HasPrefix(p, "/sys/devices/system/cpu/") })
	golden.Compare(t, filepath.Join("testdata", "default.json"), golden.JSON(t, s))
}

// Default is containerd's default spec, except for the differences in its doc comment.
func TestDefaultIsContainerds(t *testing.T) {
	want, err := oci.GenerateSpecWithPlatform(namespaces.WithNamespace(context.Background(), "k8s.io"), nil, "linux/"+
		runtime.GOARCH, &containers.Container{ID: "x"})
	must.Succeed(t, err)
	if len(want.Process.Rlimits) == 0 || want.Version == "1.0.2" || want.Linux.CgroupsPath == "" {
		t.Fatal("containerd's default spec has changed: does Default still have anything to adapt?")
	}
	want.Version, want.Process.Rlimits, want.Linux.CgroupsPath = "1.0.2", nil, ""
	expect.Equal(t, "Default", want, parsed(t, mustDefault(t)))
}

func TestDefaultIsAlwaysTheSame(t *testing.T) {
	first := mustDefault(t)
	for range 20 {
		if diff := cmp.Diff(string(first), string(mustDefault(t))); diff != "" {
			t.Fatalf("Default (-first +later):\n%s", diff)
		}
	}
	if text, err := Read(bytes.NewReader(first)); err != nil || !bytes.Equal(text, first) {
		t.Errorf("Read does not take what Default gives: %v", err)
	}
}

func TestRead(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"smallest": {text: `{"ociVersion":"1.0.2","linux":{}}`},
		"white space around": {" \t\r\n{\"ociVersion\":\"x\", \"linux\":{\"<\":1e400}}\r\n ",
			`{"ociVersion":"x", "linux":{"<":1e400}}`},
		"keys as Go takes them":    {text: `{"OCIVERSION":"1.2.0","Linux":{"resources":null},"x":[18446744073709551615]}`},
		"Linux on Windows":         {text: `{"linux":{},"ociVersion":"\u0031","windows":{}}`},
		"bytes that are not UTF-8": {text: "{\"ociVersion\":\"1\",\"linux\":{},\"y\":\"\xff\u00a0\"}"},
		"deep": {text: `{"ociVersion":"1","linux":{},"deep":` + strings.Repeat("[", 900) +
			strings.Repeat("]", 900) + `}`},
	} {
		t.Run(name, func(t *testing.T) {
			if test.want == "" {
				test.want = test.text
			}
			got, err := Read(strings.NewReader(test.text))
			if diff := cmp.Diff(test.want, string(got)); err != nil || diff != "" {
				t.Errorf("Read: %v (-want +got):\n%s", err, diff)
			}
		})
	}
}

// Texts that are not a Linux spec, and the errors.
func TestReadRefuses(t *testing.T) {
	var got strings.Builder
	for _, text := range []string{
		"", " \r\n\t", "ociVersion: 1.0.2\n", `{"ociVersion":"1.0.2","linux":{`,
		`{"ociVersion":"1","linux":{}}{"ociVersion":"1","linux":{}}`, "\ufeff" + `{"ociVersion":"1","linux":{}}`,
		"\u00a0" + `{"ociVersion":"1","linux":{}}`, "\x7fELF\x02\x01", `{"x":` + strings.Repeat("[", 1<<20),
		`[{"ociVersion":"1","linux":{}}]`, `"{}"`, `1e400`, `null`,
		`{}`, `{"apiVersion":"v1","kind":"Pod"}`, `{"ociVersion":null,"linux":{}}`, `{"ociVersion":"","linux":{}}`,
		`{"ociVersion":1.0,"linux":{}}`,
		`{"ociVersion":"1.0.2","windows":{}}`, `{"ociVersion":"1.0.2","linux":null}`, `{"ociVersion":"1.0.2","linux":[]}`,
	} {
		out, err := Read(strings.NewReader(text))
		if err == nil || out != nil {
			t.Errorf("Read of %.60q: %v, and a text: %s", text, err, out)
		}
		fmt.Fprintf(&got, "%.60q\n    %v\n", text, err)
	}
	golden.Compare(t, filepath.Join("testdata", "refused.golden"), got.String())
	broken := errors.New("cable pulled")
	if _, err := Read(io.MultiReader(strings.NewReader(`{"ociVersion":`), iotest.ErrReader(broken))); !errors.Is(err,
		broken) {
		t.Errorf("Read from what breaks: %v", err)
	}
}

// Read accepts 16 MiB, and refuses one byte more, even if it is all white space. It also ends if the source is endless.
func TestReadRefusesMoreThan16MiB(t *testing.T) {
	const want = "larger than 16 MiB: expected an OCI runtime spec in JSON"
	text := []byte(`{"ociVersion":"1.0.2","linux":{},"x":"`)
	text = append(append(text, bytes.Repeat([]byte("x"), 16<<20-len(text)-2)...), `"}`...)
	if got, err := Read(bytes.NewReader(text)); err != nil || len(got) != 16<<20 {
		t.Errorf("Read of 16 MiB: %d bytes, %v", len(got), err)
	}
	for name, source := range map[string]io.Reader{
		"one byte more": bytes.NewReader(slices.Insert(text, len(text)-2, 'x')),
		"white space": bytes.NewReader(append([]byte(`{"ociVersion":"1.0.2","linux":{}}`),
			bytes.Repeat([]byte(" "), 16<<20)...)),
		"something far behind": io.MultiReader(strings.NewReader(`{"ociVersion":"1.0.2","linux":{}}`),
			bytes.NewReader(bytes.Repeat([]byte("\n"), 17<<20)), strings.NewReader("rm -rf")),
		"an endless one, as a disk": &endless{t: t},
	} {
		if _, err := Read(source); err == nil || err.Error() != want {
			t.Errorf("%s: %v; want %s", name, err, want)
		}
	}
}

// endless returns zeros forever. It fails the test if more is read than is needed to see that the text is too long.
type endless struct {
	t    *testing.T
	read int
}

func (e *endless) Read(p []byte) (int, error) {
	if e.read += len(p); e.read > 32<<20 {
		e.t.Error("Read does not stop")
		return 0, io.EOF
	}
	return len(p), nil
}

func TestIndent(t *testing.T) {
	const want = `{
  "a": "<&>\u003c\/",
  "b": [
    1e400,
    18446744073709551615,
    -0.0
  ],
  "c": {}
}
`
	got, err := Indent([]byte(`{"a":"<&>\u003c\/","b" : [1e400, 18446744073709551615,-0.0],"c":{ }}`))
	if diff := cmp.Diff(want, string(got)); err != nil || diff != "" {
		t.Errorf("Indent: %v (-want +got):\n%s", err, diff)
	}
	again, err := Indent(bytes.TrimSuffix(got, []byte("\n")))
	if diff := cmp.Diff(string(got), string(again)); err != nil || diff != "" {
		t.Errorf("Indent of its own result: %v (-want +got):\n%s", err, diff)
	}
	if _, err := Indent([]byte(`{`)); err == nil {
		t.Error("Indent takes what is not JSON")
	}
}

func TestHasIPCLock(t *testing.T) {
	for text, want := range map[string]bool{
		`{"process":{"capabilities":{"bounding":["CAP_CHOWN","CAP_IPC_LOCK"]}}}`:   true,
		`{"Process":{"Capabilities":{"Effective":["CAP_IPC_LOCK"]}}}`:              true,
		`{"process":{"capabilities":{"bounding":["CAP_IPC_OWNER"],"ambient":[]}}}`: false,
		`{"process":{}}`: false,
		`{"process":`:    false,
	} {
		if got := HasIPCLock([]byte(text)); got != want {
			t.Errorf("HasIPCLock(%s) = %v, want %v", text, got, want)
		}
	}
}

func TestCapsFiles(t *testing.T) {
	for text, want := range map[string]bool{
		`{"process":{"rlimits":[{"type":"RLIMIT_NOFILE","hard":1024,"soft":1024}]}}`:                                    true,
		`{"process":{"rlimits":[{"type":"RLIMIT_CORE"},{"type":"RLIMIT_NOFILE","hard":4096,"soft":1024}]}}`:             true,
		`{"ociVersion":7,"linux":[],"process":{"env":{},"rlimits":[{"type":"RLIMIT_NOFILE","hard":1024,"soft":1024}]}}`: true,
		`{"process":{"rlimits":[{"type":"RLIMIT_NOFILE","hard":65536,"soft":65536}]}}`:                                  false,
		`{"process":{"rlimits":[{"type":"RLIMIT_NPROC","hard":1024,"soft":1024}]}}`:                                     false,
		`{"process":{"rlimits":[]}}`: false,
		`{"process":{"rlimits":{}}}`: false,
		`{"process":null}`:           false,
		`{}`:                         false,
		``:                           false,
	} {
		if got := CapsFiles([]byte(text)); got != want {
			t.Errorf("CapsFiles(%s) = %v, want %v", text, got, want)
		}
	}
}

func TestWithoutFileLimit(t *testing.T) {
	for text, want := range map[string]string{
		`{"ociVersion":"1.1.0","process":{"rlimits":[{"type":"RLIMIT_NOFILE","hard":1024,"soft":1024},{"type":"RLIMIT_CORE","hard":18446744073709551615,"soft":0}],"x":1e400}}`: `{"ociVersion":"1.1.0","process":{"rlimits":[{"type":"RLIMIT_CORE","hard":18446744073709551615,"soft":0}],"x":1e400}}`,
		`{"process": {"rlimits": [{"type":"RLIMIT_NOFILE","hard":65536,"soft":65536}]}}`:                                                                                        `{"process": {"rlimits": [{"type":"RLIMIT_NOFILE","hard":65536,"soft":65536}]}}`,
		`{ "ociVersion": "1.1.0" }`: `{ "ociVersion": "1.1.0" }`,
	} {
		got, err := WithoutFileLimit([]byte(text))
		if err != nil || string(got) != want || CapsFiles(got) {
			t.Errorf("%s, %v; want %s", got, err, want)
		}
	}
}
