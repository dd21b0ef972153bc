// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
)

// Ignored is a file whose settings of CRI or NRI do not count.
type Ignored struct {
	File
	Lost   []string // dotted keys of the plugin that the file sets; empty where it is all of them
	By     string   // the name of a file that replaces them
	Reason string
	Fix    string
}

// Ignored returns the files whose settings of CRI or NRI the daemon does not take over, without a word. In containerd
// 1.x, a section of an imported file replaces the whole section of an earlier one. Some versions of 2.x ignore the CRI
// section of a file that has no version, and of one whose version is older than that of another file. Most versions
// ignore a CRI section by a name that CRI does not have in the file's version. The tree is the effective configuration.
func (d Daemon) Ignored(ctx context.Context, all []File, tree map[string]any) (found []Ignored) {
	version, err := d.Program.Version(ctx)
	if err != nil {
		return nil
	}
	for i, f := range all {
		for _, plugin := range slices.Concat(CRIPlugins, aliases(NRIPlugin)) {
			section, _ := tomledit.Lookup(f.Tree, "plugins", plugin)
			table, isTable := section.(map[string]any)
			var ignored *Ignored
			switch {
			case !isTable:
			case slices.Contains(CRIPlugins, plugin) && plugin != criName(version, f):
				if !onlyStreams(version, plugin, table, tree) && !d.takesOver(ctx, all, i, plugin) {
					ignored = misnamed(version, f, plugin)
				}
			case IsOld(version):
				ignored = d.replaced(version, f, all[i+1:], plugin, table)
			case slices.Contains(CRIPlugins, plugin):
				ignored = d.ignoredForVersion(ctx, version, all, i, plugin)
			}
			if ignored != nil {
				ignored.File = f
				found = append(found, *ignored)
			}
		}
	}
	for _, key := range d.unknown(ctx, version, all) {
		whole := func(other Ignored) bool { return other.Path == key.Path && other.Lost == nil } // then that is why
		if !slices.ContainsFunc(found, whole) {
			found = append(found, key)
		}
	}
	return found
}

// unknownKey is what the program says of a key of a plugin that it does not know.
var unknownKey = regexp.MustCompile(`msg="Ignoring unknown key in TOML for plugin".* key=(?:"([^"]+)"|(\S+)) plugin="?([^"\s]+)`)

// unknown returns the files with keys of NRI and of handlers that the program does not know, as it says itself on
// standard error. Keys of other parts are not for RDMA containers.
func (d Daemon) unknown(ctx context.Context, version string, all []File) (found []Ignored) {
	program, complains := d.Program.(interface {
		Complaints(ctx context.Context, file string) ([]byte, error)
	})
	if !complains || len(all) == 0 {
		return nil
	}
	var said []byte
	if _, err := d.withCopies(all, func(file string) (err error) {
		said, err = program.Complaints(ctx, file)
		return err
	}); err != nil {
		return nil
	}
	for _, match := range unknownKey.FindAllStringSubmatch(string(said), -1) {
		path := strings.Fields(match[1] + match[2])
		plugin := match[3]
		at := slices.Index(path, "runtimes")
		ofHandler := slices.Contains(CRIPlugins, plugin) && at >= 0 && len(path) > at+2
		if plugin != NRIPlugin && !ofHandler {
			continue
		}
		for _, name := range aliases(plugin) {
			full := append([]string{"plugins", name}, path...)
			key := strings.Join(path, ".")
			f, is := Last(all, func(tree map[string]any) bool { // a zero says nothing: NVIDIA's toolkit writes such old keys
				value, says := tomledit.Lookup(tree, full...)
				return says && !reflect.ValueOf(value).IsZero()
			})
			if is {
				found = append(found, Ignored{File: f, Lost: []string{key},
					Reason: fmt.Sprintf("containerd %s does not support the key %s of %s", version, key, name),
					Fix:    fmt.Sprintf("correct the key in %s, or remove it", f.Path)})
			}
		}
	}
	return found
}

// replaced returns what later files take away from a file's section; nil where that is nothing.
func (d Daemon) replaced(version string, f File, later []File, plugin string, table map[string]any) *Ignored {
	by, is := Last(later, func(tree map[string]any) bool {
		_, says := tomledit.Lookup(tree, "plugins", plugin)
		return says
	})
	var lost []string
	for path := range tomledit.Leaves(table) {
		keys := strings.Split(path, "\x00")
		if _, kept := tomledit.Lookup(by.Tree, append([]string{"plugins", plugin}, keys...)...); is && !kept {
			lost = append(lost, strings.Join(keys, "."))
		}
	}
	if lost == nil {
		return nil
	}
	slices.Sort(lost)
	some := strings.Join(lost, ", ")
	if len(lost) > 3 {
		some = fmt.Sprintf("%s, and %d more keys", strings.Join(lost[:2], ", "), len(lost)-2)
	}
	why := fmt.Sprintf("containerd %s does not merge sections: the section %s in %s replaces the one in this file, so "+
		"%s is lost",
		version, plugin, by.Name, some)
	fix := fmt.Sprintf("copy the lost keys from %[2]s to %[1]s, or remove the section from %[1]s", by.Path, f.Path)
	if d.Rendered(by) {
		fix = fmt.Sprintf("write the whole section to one file in %s", d.DropIns)
	}
	return &Ignored{Lost: lost, By: by.Name, Reason: why, Fix: fix}
}

// IsOld reports whether a program's version is of containerd 1.x, which does not merge the sections of files.
func IsOld(version string) bool { return strings.HasPrefix(version, "1.") }

// criName returns the name that CRI has for a program in the version of a file. containerd 1.x knows two versions.
func criName(version string, f File) string {
	if IsOld(version) {
		return CRIPlugin(min(f.Version(), 2))
	}
	return CRIPlugin(f.Version())
}

// onlyStreams reports whether a CRI section has nothing but settings of CRI's stream server, which have kept their name
// in containerd 2.x: the effective configuration has them by it.
func onlyStreams(version, plugin string, section, tree map[string]any) bool {
	own, _ := tomledit.Lookup(tree, "plugins", plugin)
	streams, _ := own.(map[string]any)
	for key := range section {
		if IsOld(version) || streams[key] == nil {
			return false
		}
	}
	return true
}

// misnamed says why a file's CRI section does not count by its name.
func misnamed(version string, f File, plugin string) *Ignored {
	says := fmt.Sprintf("has version %d", f.Version())
	fix := fmt.Sprintf("rename the section in %[3]s to its name in version %[1]d, which is %[2]s for handlers",
		f.Version(), criName(version, f), f.Path)
	if f.Version() == 0 {
		says = "has no version"
		fix = fmt.Sprintf("add version = 2 to the top of %s", f.Path)
	}
	why := fmt.Sprintf("it %s, and containerd %s ignores the section %s of such a file", says, version, plugin)
	return &Ignored{Reason: why, Fix: fix}
}

// ignoredForVersion returns why the program ignores a file's CRI section because of its version; nil where it does not.
func (d Daemon) ignoredForVersion(ctx context.Context, version string, all []File, i int, plugin string) *Ignored {
	f := all[i]
	newest := slices.MaxFunc(all, func(a, b File) int { return a.Version() - b.Version() })
	if f.Version() > 1 && newest.Version() == f.Version() || d.takesOver(ctx, all, i, plugin) {
		return nil
	}
	why := fmt.Sprintf("it has no version, and containerd %s ignores the CRI settings of such a file", version)
	if f.Version() > 1 {
		why = fmt.Sprintf("it has version %d, %s has version %d, and containerd %s ignores the CRI settings of the "+
			"file with the older version", f.Version(), newest.Name, newest.Version(), version)
	}
	return &Ignored{Reason: why, Fix: fmt.Sprintf("run containerd --config %[1]s config migrate, compare its output "+
		"with %[1]s, and copy the CRI settings from the output to %[1]s", f.Path)}
}

// takesOver reports whether the program takes a file's CRI section over, or cannot be asked that. It is asked with a
// handler that the file does not have.
func (d Daemon) takesOver(ctx context.Context, all []File, i int, plugin string) bool {
	const probe = "rdma-spec-probe"
	made := map[string]any{}
	tomledit.Put(made, "io.containerd.runc.v2", "plugins", plugin, "containerd", "runtimes", probe, "runtime_type")
	lines, err := tomledit.Tables(made)
	if err != nil {
		return true
	}
	probed := slices.Clone(all)
	probed[i].Text = slices.Concat(all[i].Text, []byte("\n"), lines)
	tree, err := d.load(ctx, probed)
	_, handlers := Handlers(tree)
	return err != nil || handlers[probe] != nil
}
