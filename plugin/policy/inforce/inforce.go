// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package inforce stores the policy in force where other programs on the node find it. The registered plugin writes it.
// rdma-spec compares running containers with it. A plugin that cannot read its configuration at startup uses it.
//
// The file identifies its writer. rdma-spec rejects a file whose writer has exited, so nobody has to remove it. Every
// program rejects a file that users other than root can change.
package inforce

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

// File is the path of the policy in force, below the node's root.
const File = "/run/rdma-spec/policy.yaml"

const (
	apiVersion = "rdma-spec/v1alpha1"
	// maxSize bounds the file in bytes. The file contains a configuration of at most 1 MiB, with its defaults filled in.
	maxSize = 4 << 20
)

// ErrEnded means that the plugin that wrote the policy has exited.
var ErrEnded = errors.New("the plugin that wrote it has exited")

// document is the content of the file.
type document struct {
	APIVersion string `json:"apiVersion"`
	Source     string `json:"source"`
	PID        int    `json:"pid"`               // of the writer, in its PID namespace
	Version    string `json:"version,omitempty"` // of the writer
	// Deployment is the deployment of the writer, such as DaemonSet.NAMESPACE.NAME; "" if the writer runs on the node
	// itself.
	Deployment string          `json:"deployment,omitempty"`
	Policy     json.RawMessage `json:"policy"`
}

// InForce is a policy in force.
type InForce struct {
	Policy  *policy.Policy
	Source  string // where its writer got it: a file, the runtime, or the defaults
	Path    string // the file that it was read from
	Version string // of its writer; "" if unknown
}

// Read reads the policy in force on the node with the given root. The error is one line. It is fs.ErrNotExist if no
// plugin wrote a policy, and ErrEnded if the writer has exited.
func Read(root string) (*InForce, error) {
	return read(root, false)
}

// Last is like Read, but ignores whether the writer has exited: it reads the policy that was last in force since the
// node booted.
func Last(root string) (*InForce, error) {
	return read(root, true)
}

// CheckWriter returns nil while the plugin that wrote the policy in force is running, even if its version differs. Its
// errors are those of Read.
func CheckWriter(root string) error {
	file, err := openTrusted(filepath.Join(root, File))
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // nothing is read from it
	return checkLocked(file)
}

// Rival returns an error if a registered plugin of another deployment serves the node with the given root. The error
// names that deployment. A policy that cannot be read is ignored.
func Rival(root, deployment string) error {
	file, err := openTrusted(filepath.Join(root, File))
	if err != nil {
		return nil
	}
	defer func() { _ = file.Close() }() // opened for reading
	text, err := io.ReadAll(file)
	if err != nil || checkLocked(file) != nil {
		return nil
	}
	var d document
	if err := yaml.Unmarshal(text, &d); err != nil || d.Deployment == deployment {
		return nil
	}
	if name, ok := strings.CutPrefix(d.Deployment, "DaemonSet."); ok {
		return fmt.Errorf("the DaemonSet %s serves this node", strings.Replace(name, ".", "/", 1))
	}
	return errors.New("an nri-rdma process outside Kubernetes, such as the systemd service, serves this node")
}

func checkLocked(file *os.File) error {
	locked, err := isLocked(file)
	if err == nil && !locked {
		err = fmt.Errorf("%s is out of date: %w", file.Name(), ErrEnded)
	}
	return err
}

func read(root string, ended bool) (*InForce, error) {
	path := filepath.Join(root, File)
	file, err := openTrusted(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // opened for reading
	text, err := io.ReadAll(file)
	if err != nil {
		return nil, err
	}
	var d document
	if err := yaml.UnmarshalStrict(text, &d); err != nil {
		return nil, unreadable(path, err)
	}
	if d.APIVersion != apiVersion {
		return nil, unreadable(path, fmt.Errorf("its apiVersion is %q, not %s", d.APIVersion, apiVersion))
	}
	if err := checkLocked(file); err != nil && !ended {
		return nil, err
	}
	p, err := policy.FromText(d.Policy)
	if err != nil {
		return nil, unreadable(path, err)
	}
	return &InForce{Policy: p, Source: d.Source, Path: path, Version: d.Version}, nil
}

func unreadable(path string, err error) error {
	return fmt.Errorf("%s cannot be read as a policy: %s", path, strings.ReplaceAll(err.Error(), "\n", "; "))
}

// openTrusted opens a file that only root or the current user can have written.
func openTrusted(path string) (*os.File, error) {
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("no policy is in force: %w", &fs.PathError{Op: "open", Path: path, Err: files.Cause(err)})
	}
	defer func() { _ = dir.Close() }() // opened for reading
	info, err := dir.Stat(".")
	if err == nil {
		err = trusted(filepath.Dir(path), info)
	}
	if err != nil {
		return nil, err
	}
	file, err := dir.OpenFile(filepath.Base(path), os.O_RDONLY|syscall.O_NONBLOCK, 0) // it might be a pipe
	if err != nil {
		return nil, fmt.Errorf("no policy is in force: %w", &fs.PathError{Op: "open", Path: path, Err: files.Cause(err)})
	}
	info, err = file.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = unreadable(path, errors.New("it is not a regular file"))
	case info.Size() > maxSize:
		err = unreadable(path, fmt.Errorf("it is larger than %d bytes", maxSize))
	default:
		err = trusted(path, info)
	}
	if err != nil {
		_ = file.Close() // it was not used
		return nil, err
	}
	return file, nil
}

// trusted rejects a file or directory that others than root and the current user can write.
func trusted(path string, info fs.FileInfo) error {
	owner, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return fmt.Errorf("%s is not trusted: its owner is unknown", path)
	case owner.Uid != 0 && int(owner.Uid) != os.Geteuid():
		return fmt.Errorf("%s is not trusted: it belongs to user %d, not to root", path, owner.Uid)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s is not trusted: users other than root can write to it (mode %04o)", path, info.Mode().Perm())
	}
	return nil
}
