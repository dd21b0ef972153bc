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

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/atomicfile"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
)

// NotRun is the error where the program could not be asked, which says nothing about the configuration.
type NotRun struct{ error }

// Effective returns the configuration that the daemon has after its next start, with planned contents of files: with
// some of them nil, it is the one without those. The error is NotRun, or why the daemon does not start.
func (d Daemon) Effective(ctx context.Context, planned Contents) (map[string]any, error) {
	if d.Program == nil {
		return nil, NotRun{fmt.Errorf("no program of %s was found", d.Name)}
	}
	all, err := d.Files(ctx, planned)
	if err != nil {
		return nil, notRun(ctx, err)
	}
	return d.effective(ctx, all)
}

// effective has the program load copies of the files in memory, of which the first imports the others in their order.
func (d Daemon) effective(ctx context.Context, all []File) (map[string]any, error) {
	var copies []any
	var names []string // of the copies, and of what they are copies of
	for i, f := range slices.Backward(all) {
		var list []any
		if i == 0 {
			list = copies
		}
		text, err := f.importing(list)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Path, err)
		}
		staged, err := atomicfile.InMemory(text)
		if err != nil {
			return nil, NotRun{err}
		}
		defer func() { _ = staged.Close() }() // a copy
		copies, names = append([]any{staged.Name()}, copies...), append(names, staged.Name(), f.Path)
	}
	tree, err := d.Dump(ctx, names[len(names)-2])
	if err = notRun(ctx, err); err == nil || errors.As(err, new(NotRun)) {
		return tree, err
	}
	for _, f := range all {
		marked := f.Marked()
		if version, _ := d.Program.Version(ctx); marked != nil && !strings.HasPrefix(version, "1.") { // it has just answered
			return nil, marked
		}
		if f.Tree == nil && f.Pattern != "" && filepath.Ext(f.Name) != ".toml" {
			return nil, fmt.Errorf("%s imports %q, which takes %s, and containerd does not start with it: import %s", f.By,
				f.Pattern, f.Name, filepath.Join(filepath.Dir(f.Pattern), "*.toml"))
		}
	}
	return nil, errors.New(strings.NewReplacer(names...).Replace(err.Error()))
}

// importing returns the text of the file with other imports than its own.
func (f File) importing(list []any) (text []byte, err error) {
	text = bytes.TrimPrefix(f.Text, byteOrderMark)
	mark := f.Text[:len(f.Text)-len(text)]
	if _, says := f.Tree["imports"]; says || len(list) > 0 {
		text, err = tomledit.Set(text, list, "imports")
	}
	return slices.Concat(mark, text), err
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

// Ignored is a file whose settings of a plugin do not count.
type Ignored struct {
	File
	Plugin string   // as the file calls it
	Lost   []string // dotted keys of the plugin that the file sets; empty where it is all of them
	Why    string
	Cure   string
}

// Ignored returns the files whose settings of CRI or NRI the daemon does not take over, without a word. In containerd
// 1.x, a section of an imported file replaces the whole section of an earlier one. Some versions of 2.x ignore the CRI
// section of a file that says no version, and of one whose version is older than that of a file which it imports: they
// are asked with a handler that the file does not have.
func (d Daemon) Ignored(ctx context.Context, all []File) (found []Ignored) {
	version, err := d.Program.Version(ctx)
	if err != nil {
		return nil
	}
	for i, f := range all {
		for _, plugin := range slices.Concat(CRIPlugins, []string{NRIPlugin, "nri"}) {
			section, _ := tomledit.Lookup(f.Tree, "plugins", plugin)
			table, _ := section.(map[string]any)
			if table == nil {
				continue
			}
			if ignored, is := d.ignores(ctx, version, all, i, plugin, table); is {
				ignored.File, ignored.Plugin = f, plugin
				found = append(found, ignored)
			}
		}
	}
	return found
}

// some are the first of many keys, as text.
func some(keys []string) string {
	if len(keys) > 3 {
		return fmt.Sprintf("%s, and %d more keys", strings.Join(keys[:2], ", "), len(keys)-2)
	}
	return strings.Join(keys, ", ")
}

func (d Daemon) ignores(ctx context.Context, version string, all []File, i int, plugin string,
	table map[string]any) (Ignored, bool) {
	f := all[i]
	if strings.HasPrefix(version, "1.") {
		by, replaced := Last(all[i+1:], func(tree map[string]any) bool {
			_, is := tomledit.Lookup(tree, "plugins", plugin)
			return is
		})
		var lost []string
		for path := range tomledit.Leaves(table) {
			keys := append([]string{"plugins", plugin}, strings.Split(path, "\x00")...)
			if _, kept := tomledit.Lookup(by.Tree, keys...); replaced && !kept {
				lost = append(lost, strings.Join(keys[2:], "."))
			}
		}
		slices.Sort(lost)
		return Ignored{Lost: lost, Why: fmt.Sprintf("containerd %s does not merge the section %s of %s into it, but replaces "+
			"it, and %s is lost", version, plugin, by.Name, some(lost)),
			Cure: fmt.Sprintf("write what %s is to keep of %s into it, or remove the section there", by.Path,
				f.Path)}, len(lost) > 0
	}
	newest := f
	for _, other := range all {
		if other.Version() > newest.Version() {
			newest = other
		}
	}
	if f.Version() > 1 && newest.Version() == f.Version() || !slices.Contains(CRIPlugins, plugin) {
		return Ignored{}, false
	}
	const probe = "rdma-spec-probe"
	text, err := tomledit.Set(bytes.TrimPrefix(f.Text, byteOrderMark), "io.containerd.runc.v2",
		"plugins", plugin, "containerd", "runtimes", probe, "runtime_type")
	if err != nil {
		return Ignored{}, false // it cannot be asked so
	}
	probed := slices.Clone(all)
	probed[i].Text = text
	tree, err := d.effective(ctx, probed)
	if _, handlers := Handlers(tree); err != nil || handlers[probe] != nil {
		return Ignored{}, false
	}
	why := fmt.Sprintf("it says no version, and containerd %s ignores the CRI settings of such a file", version)
	if f.Version() > 1 {
		why = fmt.Sprintf("it is of version %d, %s is of version %d, and containerd %s ignores the CRI settings of the older "+
			"one", f.Version(), newest.Name, newest.Version(), version)
	}
	return Ignored{Why: why, Cure: fmt.Sprintf("compare %[1]s with the output of containerd --config %[1]s config migrate, "+
		"and write its CRI settings there", f.Path)}, true
}
