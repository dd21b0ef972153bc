// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package inforce

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// TestKept: a deployment reads the policy that it kept, as it was given, and no other deployment reads it. Nobody judges
// containers by it.
func TestKept(t *testing.T) {
	root := scratch.Dir(t, KeptDir[1:])
	a, b := Kept{root, "DaemonSet.rdma-spec.a"}, Kept{root, "DaemonSet.rdma-spec.b"}
	for _, text := range []string{"# mine\nmemlock: 16Gi\n", "{memlock: 1Gi}"} {
		must.Succeed(t, a.Write([]byte(text)))
		if got := scratch.Read(t, filepath.Join(root, KeptDir, a.Deployment)); got != text {
			t.Errorf("kept is %q, want what was given, %q", got, text)
		}
		if got, err := a.Read(); err != nil || string(got.Policy.Text()) != text {
			t.Errorf("it reads %+v, %v", got, err)
		}
	}
	for name, read := range map[string]func() (*InForce, error){
		"another deployment": b.Read,
		"rdma-spec":          func() (*InForce, error) { return Read(root) },
	} {
		if got, err := read(); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s reads %+v, %v", name, got, err)
		}
	}
	left, err := os.ReadDir(filepath.Join(root, KeptDir))
	if len(left) != 1 || err != nil {
		t.Errorf("the directory has %v, %v", left, err)
	}
}

// TestKeptIsNotTrusted: what others can write, and what is no policy, is refused with the reason.
func TestKeptIsNotTrusted(t *testing.T) {
	for want, spoil := range map[string]func(file string) error{
		"users other than root can write to it": func(file string) error { return os.Chmod(file, 0o666) },
		"(mode 0777)":                           func(file string) error { return os.Chmod(filepath.Dir(file), 0o777) },
		"cannot be read as a policy":            func(file string) error { return os.WriteFile(file, []byte("memlok: 1Gi"), 0o600) },
		"is empty":                              func(file string) error { return os.Truncate(file, 0) },
		"not a regular file":                    func(file string) error { return errors.Join(os.Remove(file), os.Mkdir(file, 0o755)) },
	} {
		root := scratch.Dir(t, KeptDir[1:])
		k := Kept{root, "DaemonSet.rdma-spec.a"}
		must.Succeed(t, k.Write([]byte("{}")))
		must.Succeed(t, spoil(k.path()))
		if got, err := k.Read(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v, %v, want %q", got, err, want)
		}
	}
}
