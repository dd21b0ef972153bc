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

// NotRun means that the program could not run. This error does not concern the configuration.
type NotRun struct{ error }

// Effective returns the daemon's configuration after its next start, with the planned contents of files. A file whose
// planned content is nil is omitted. The error is NotRun, or the reason why the daemon does not start.
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

// refusal is the program's error message if it does not start with the files.
type refusal struct{ error }

// load makes the program load the files. The first file imports the other files in their order. The error is NotRun, a
// refusal, or the reason why a file cannot be copied.
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

// withCopies copies files to memory and calls do with the name of the first copy, which imports the other copies in
// their order. It returns the error of do, and a replacer that changes the copies' names to the files' names.
func (d Daemon) withCopies(all []File, do func(file string) error) (named *strings.Replacer, err error) {
	var copies []any
	var names []string // of the copies and of their originals
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

// explain adds the file that caused a refusal, and the fix if it is known.
func (d Daemon) explain(ctx context.Context, all []File, said refusal) error {
	version, _ := d.Program.Version(ctx) // the program has just responded
	for _, f := range all {
		if bytes.HasPrefix(f.Text, tomledit.ByteOrderMark) && !IsOld(version) {
			return fmt.Errorf("%s begins with a byte order mark, which containerd 2.x refuses: remove the mark with sed -i "+
				`'1s/^\xEF\xBB\xBF//' %[1]s`, f.Path)
		}
		if reads := d.latestVersionRead(ctx, f.Version()); reads < f.Version() {
			return fmt.Errorf("%s has version %d, which containerd %s does not support: convert the file to version %d, or "+
				"install a later version of containerd", f.Path, f.Version(), version, reads)
		}
		if f.Tree == nil && f.Pattern != "" && filepath.Ext(f.Name) != ".toml" {
			return fmt.Errorf("%s imports %q, which also matches a file that is not TOML (%s), so containerd does not "+
				"start: import %s instead", f.By, f.Pattern, f.Name, filepath.Join(filepath.Dir(f.Pattern), "*.toml"))
		}
	}
	for _, f := range all { // containerd 2.x does not report the file with the error
		if len(all) == 1 || strings.Contains(said.Error(), f.Path) {
			break
		}
		if _, err := d.load(ctx, []File{f}); err != nil && !errors.As(err, new(NotRun)) {
			return fmt.Errorf("%s: %w", f.Path, said)
		}
	}
	return said
}

// latestVersionRead returns the latest configuration version that the program supports, up to version. If the program
// supports no such version, it returns version.
func (d Daemon) latestVersionRead(ctx context.Context, version int) int {
	for reads := min(version, 9); version > 2 && reads >= 2; reads-- { // all programs support 2
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

// withImports returns the text of the file with its imports replaced.
func (f File) withImports(list []any) (text []byte, err error) {
	if _, says := f.Tree["imports"]; !says && len(list) == 0 {
		return f.Text, nil
	}
	return tomledit.Set(f.Text, list, "imports")
}

// notRun returns an error as NotRun if the error concerns the program, or a file that cannot be read.
func notRun(ctx context.Context, err error) error {
	if err != nil && (ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) ||
		errors.As(err, new(*exec.ExitError)) || errors.As(err, new(syscall.Errno))) {
		return NotRun{err}
	}
	return err
}

// Dump returns the effective configuration of a file, without the list of imported files.
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

// Check returns an error if the daemon does not start with the node's current files.
func (d Daemon) Check(ctx context.Context) error {
	if !Exists(d.File()) && !d.Told {
		return nil
	}
	if _, err := d.Effective(ctx, nil); err != nil {
		return fmt.Errorf("containerd cannot load %s: %w", d.File(), err)
	}
	return nil
}
