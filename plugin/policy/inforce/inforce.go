// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package inforce stores the policy in force in a file that other programs on the node can read. The registered plugin
// writes the file. rdma-spec compares running containers with the policy in the file. A plugin that cannot read its
// configuration at startup uses the policy in the file.
//
// The file identifies its writer. rdma-spec rejects a file whose writer has exited, so the file need not be removed.
// Every program rejects a file that users other than root can change.
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

// File is the path of the file that contains the policy in force, below the node's root directory.
const File = "/run/rdma-spec/policy.yaml"

const (
	apiVersion = "rdma-spec/v1alpha1"
	// maxSize is the maximum size of the file in bytes. The file contains a configuration of at most 1 MiB, with all
	// defaults filled in.
	maxSize = 4 << 20
)

// ErrEnded means that the plugin that wrote the policy has exited.
var ErrEnded = errors.New("the plugin that wrote the policy has exited")

// document is the content of the file.
type document struct {
	APIVersion string `json:"apiVersion"`
	Source     string `json:"source"`
	PID        int    `json:"pid"`               // the PID of the writer, in its own PID namespace
	Version    string `json:"version,omitempty"` // the version of the writer
	// Deployment is the deployment of the writer, such as DaemonSet.NAMESPACE.NAME. If the writer runs directly on the
	// node, Deployment is "".
	Deployment string          `json:"deployment,omitempty"`
	Policy     json.RawMessage `json:"policy"`
}

// InForce is a policy in force.
type InForce struct {
	Policy  *policy.Policy
	Source  string // the source of the policy: a file, the runtime, or the defaults
	Path    string // the file that contained the policy
	Version string // the version of the writer; "" if unknown
}

// Read reads the policy in force on the node with the given root directory. The error is one line. If no plugin wrote a
// policy, the error is fs.ErrNotExist. If the writer has exited, the error is ErrEnded.
func Read(root string) (*InForce, error) {
	return read(root, false)
}

// Last returns the policy that was last in force since the node booted. Unlike Read, Last accepts a policy whose writer
// has exited.
func Last(root string) (*InForce, error) {
	return read(root, true)
}

// CheckWriter returns nil while the plugin that wrote the policy in force is running, even if the version of the plugin
// differs. CheckWriter returns the same errors as Read.
func CheckWriter(root string) error {
	file, err := openTrusted(filepath.Join(root, File))
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // opened for reading
	return checkLocked(file)
}

// Rival returns an error if a registered plugin of another deployment serves the node with the given root directory.
// The error names the other deployment. Rival ignores a policy that cannot be read.
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
		return fmt.Errorf("the %s DaemonSet serves this node", strings.Replace(name, ".", "/", 1))
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
		return nil, unreadable(path, fmt.Errorf("the apiVersion is %q, not %s", d.APIVersion, apiVersion))
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

// openTrusted opens a file, and rejects a file that users other than root and the current user can write to.
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
	file, err := dir.OpenFile(filepath.Base(path), os.O_RDONLY|syscall.O_NONBLOCK, 0) // the file might be a pipe
	if err != nil {
		return nil, fmt.Errorf("no policy is in force: %w", &fs.PathError{Op: "open", Path: path, Err: files.Cause(err)})
	}
	info, err = file.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = unreadable(path, errors.New("the file is not a regular file"))
	case info.Size() > maxSize:
		err = unreadable(path, fmt.Errorf("the file is larger than %d bytes", maxSize))
	default:
		err = trusted(path, info)
	}
	if err != nil {
		_ = file.Close() // the file was not used
		return nil, err
	}
	return file, nil
}

// trusted rejects a file or directory that users other than root and the current user can write to.
func trusted(path string, info fs.FileInfo) error {
	owner, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return fmt.Errorf("%s is not trusted: the owner is unknown", path)
	case owner.Uid != 0 && int(owner.Uid) != os.Geteuid():
		return fmt.Errorf("%s is not trusted: the owner is user %d, not root", path, owner.Uid)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s is not trusted: users other than root can write to it (mode %04o)", path, info.Mode().Perm())
	}
	return nil
}
