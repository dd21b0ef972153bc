// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/spec/files/atomicfile"
)

// NotRun is the error where the program could not be asked, which says nothing about the configuration.
type NotRun struct{ error }

// Effective returns the configuration that the daemon has after its next start, with planned contents of files: with
// some of them nil, it is the one without those. The error is NotRun, or why the daemon does not start.
func (d Daemon) Effective(ctx context.Context, planned Contents) (map[string]any, error) {
	if d.Program == nil {
		return nil, NotRun{fmt.Errorf("cannot find the %s program", d.Name)}
	}
	all, err := d.Files(ctx, planned)
	if err != nil {
		return nil, notRun(ctx, err)
	}
	tree, err := d.load(ctx, all)
	if said := (refusal{}); errors.As(err, &said) {
		return nil, d.explain(ctx, all, said)
	}
	return tree, err
}

// refusal is what the program says where it does not start with the files.
type refusal struct{ error }

// load has the program load the files, of which the first imports the others in their order. The error is NotRun, a
// refusal, or why no copy can be made of a file.
func (d Daemon) load(ctx context.Context, all []File) (tree map[string]any, err error) {
	named, err := d.withCopies(all, func(file string) error {
		tree, err = d.Dump(ctx, file)
		return notRun(ctx, err)
	})
	if err == nil || named == nil || errors.As(err, new(NotRun)) {
		return tree, err
	}
	return nil, refusal{errors.New(named.Replace(err.Error()))}
}

// withCopies makes copies of files in memory, of which the first imports the others in their order, for a function that
// gets the name of the first one. It returns that one's error, and what turns the copies' names into the files'.
func (d Daemon) withCopies(all []File, do func(file string) error) (named *strings.Replacer, err error) {
	var copies []any
	var names []string // of the copies, and of what they are copies of
	for i, f := range slices.Backward(all) {
		var list []any
		if i == 0 {
			list = copies
		}
		text, err := f.withImports(list)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Path, err)
		}
		staged, err := atomicfile.InMemory(text)
		if err != nil {
			return nil, NotRun{err}
		}
		defer func() { _ = staged.Close() }() // a copy
		copies = append([]any{staged.Name()}, copies...)
		names = append(names, staged.Name(), f.Path)
	}
	return strings.NewReplacer(names...), do(names[len(names)-2])
}

// explain names the file of a refusal, and what to do where that is known.
func (d Daemon) explain(ctx context.Context, all []File, said refusal) error {
	version, _ := d.Program.Version(ctx) // it has just answered
	for _, f := range all {
		if bytes.HasPrefix(f.Text, tomledit.ByteOrderMark) && !IsOld(version) {
			return fmt.Errorf("%s begins with a byte order mark, which containerd 2.x refuses: remove it with sed -i "+
				`'1s/^\xEF\xBB\xBF//' %[1]s`, f.Path)
		}
		if reads := d.latestVersionRead(ctx, f.Version()); reads < f.Version() {
			return fmt.Errorf("%s has version %d, which containerd %s does not support: convert it to version %d, or install "+
				"a newer containerd", f.Path, f.Version(), version, reads)
		}
		if f.Tree == nil && f.Pattern != "" && filepath.Ext(f.Name) != ".toml" {
			return fmt.Errorf("%s imports %q, which also matches %s; this file is not TOML, so containerd does not start: "+
				"import %s instead", f.By, f.Pattern, f.Name, filepath.Join(filepath.Dir(f.Pattern), "*.toml"))
		}
	}
	for _, f := range all { // containerd 2.x does not say in which file it is
		if len(all) == 1 || strings.Contains(said.Error(), f.Path) {
			break
		}
		if _, err := d.load(ctx, []File{f}); err != nil && !errors.As(err, new(NotRun)) {
			return fmt.Errorf("%s: %w", f.Path, said)
		}
	}
	return said
}

// latestVersionRead returns the latest version of the configuration that the program reads, up to one; that one if it
// reads none.
func (d Daemon) latestVersionRead(ctx context.Context, version int) int {
	for reads := min(version, 9); version > 2 && reads >= 2; reads-- { // all read 2
		probe, err := atomicfile.InMemory(fmt.Appendf(nil, "version = %d\n", reads))
		if err != nil {
			break
		}
		_, err = d.Dump(ctx, probe.Name())
		_ = probe.Close() // a probe
		if err == nil {
			return reads
		}
	}
	return version
}

// withImports returns the text of the file with other imports than its own.
func (f File) withImports(list []any) (text []byte, err error) {
	if _, says := f.Tree["imports"]; !says && len(list) == 0 {
		return f.Text, nil
	}
	return tomledit.Set(f.Text, list, "imports")
}

// notRun returns an error as NotRun where it is about the program, or a file that cannot be read.
func notRun(ctx context.Context, err error) error {
	if err != nil && (ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) ||
		errors.As(err, new(*exec.ExitError)) || errors.As(err, new(syscall.Errno))) {
		return NotRun{err}
	}
	return err
}

// Dump returns the effective configuration of a file, without the list of files that it was made of.
func (d Daemon) Dump(ctx context.Context, file string) (map[string]any, error) {
	text, err := d.Program.Dump(ctx, file)
	if err != nil {
		return nil, err
	}
	tree, err := tomledit.Parse(bytes.TrimSpace(text))
	if err != nil {
		return nil, fmt.Errorf("the effective configuration is not TOML: %w", err)
	}
	delete(tree, "imports")
	return tree, nil
}

// Check reports an error where the daemon does not start with the files of the node as they are.
func (d Daemon) Check(ctx context.Context) error {
	if !Exists(d.File()) && !d.Told {
		return nil
	}
	if _, err := d.Effective(ctx, nil); err != nil {
		return fmt.Errorf("containerd cannot load %s: %w", d.File(), err)
	}
	return nil
}
