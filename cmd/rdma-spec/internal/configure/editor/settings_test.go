// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package editor

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// What the program refuses is told apart from a program that could not be asked.
func TestSettingsOfFiles(t *testing.T) {
	file := filepath.Join(scratch.Folder(t), "config.toml")
	scratch.File(t, file, "version = 3\n", 0o600)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, test := range map[string]struct {
		ctx     context.Context
		program containerd.Program
		notRun  bool
	}{
		"no program":     {t.Context(), nil, true},
		"not there":      {t.Context(), containerd.Binary("/nowhere/containerd"), true},
		"no patience":    {canceled, containerd.Binary("/bin/true"), true},
		"it refuses":     {t.Context(), refuses{}, false},
		"prints no toml": {t.Context(), printing("= ="), false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := containerd.Daemon{Name: "containerd", Config: file, Program: test.program}.Effective(test.ctx, nil)
			if err == nil || errors.As(err, new(containerd.NotRun)) != test.notRun {
				t.Errorf("%v", err)
			}
		})
	}
	got, err := containerd.Daemon{Name: "containerd", Config: file, Program: printing("version = 3")}.Effective(t.Context(), nil)
	if err != nil || got["version"] != int64(3) {
		t.Errorf("%+v, %v", got, err)
	}
}

// printing is a containerd with this effective configuration.
type printing string

func (p printing) Version(context.Context) (string, error)      { return "2.4.2", nil }
func (p printing) Dump(context.Context, string) ([]byte, error) { return []byte(p), nil }

// refuses is a containerd that cannot load the file.
type refuses struct{ printing }

func (refuses) Dump(context.Context, string) ([]byte, error) {
	return nil, errors.New("failed to load TOML: /etc/containerd/config.toml: expected =")
}
