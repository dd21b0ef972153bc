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

// Ignored is a file whose CRI or NRI settings have no effect.
type Ignored struct {
	File
	Lost   []string // dotted keys of the plugin that the file sets; empty if all keys are ignored
	By     string   // the name of a file that replaces the keys
	Reason string
	Fix    string
}

// Ignored returns the files whose CRI or NRI settings the daemon silently ignores. In containerd 1.x, a section of an
// imported file replaces the whole section of an earlier file. Some 2.x versions ignore the CRI section of a file that
// has no version, or an older version than another file. Most versions ignore a CRI section whose name does not match
// the file's version. The tree is the effective configuration.
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
		whole := func(other Ignored) bool { return other.Path == key.Path && other.Lost == nil } // this includes the key
		if !slices.ContainsFunc(found, whole) {
			found = append(found, key)
		}
	}
	return found
}

// unknownKey matches the program's log line about an unknown key of a plugin.
var unknownKey = regexp.MustCompile(`msg="Ignoring unknown key in TOML for plugin".* key=(?:"([^"]+)"|(\S+)) plugin="?([^"\s]+)`)

// unknown returns the files with NRI and handler keys that the program reports as unknown on standard error. Other keys
// do not concern RDMA containers.
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
			f, is := Last(all, func(tree map[string]any) bool { // NVIDIA's toolkit writes old keys as zero values
				value, says := tomledit.Lookup(tree, full...)
				return says && !reflect.ValueOf(value).IsZero()
			})
			if is {
				found = append(found, Ignored{File: f, Lost: []string{key},
					Reason: fmt.Sprintf("containerd %s does not support the %s key of %s", version, key, name),
					Fix:    fmt.Sprintf("correct or remove the key in %s", f.Path)})
			}
		}
	}
	return found
}

// replaced returns the keys of a file's section that later files remove; nil if they remove no keys.
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
	why := fmt.Sprintf("containerd %s does not merge sections: the %s section in %s replaces the section in the earlier "+
		"file and drops %s",
		version, plugin, by.Name, some)
	fix := fmt.Sprintf("copy the lost keys from %[2]s to %[1]s, or remove the section from %[1]s", by.Path, f.Path)
	if d.Rendered(by) {
		fix = fmt.Sprintf("write the whole section to one file in %s", d.DropIns)
	}
	return &Ignored{Lost: lost, By: by.Name, Reason: why, Fix: fix}
}

// IsOld reports whether a version is containerd 1.x, which does not merge the sections of files.
func IsOld(version string) bool { return strings.HasPrefix(version, "1.") }

// criName returns the name of the CRI plugin in the version of a file. containerd 1.x supports two versions.
func criName(version string, f File) string {
	if IsOld(version) {
		return CRIPlugin(min(f.Version(), 2))
	}
	return CRIPlugin(f.Version())
}

// onlyStreams reports whether a CRI section contains only settings of CRI's stream server. These settings have kept
// their name in containerd 2.x, so they are in the effective configuration under this name.
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

// misnamed explains why the name of a file's CRI section has no effect.
func misnamed(version string, f File, plugin string) *Ignored {
	says := fmt.Sprintf("has version %d", f.Version())
	fix := fmt.Sprintf("rename the section in %s to the name that configuration version %d uses (for handlers, %s)",
		f.Path, f.Version(), criName(version, f))
	if f.Version() == 0 {
		says = "has no version"
		fix = fmt.Sprintf("add version = 2 to the top of %s", f.Path)
	}
	why := fmt.Sprintf("the file %s, so containerd %s ignores the file's %s section", says, version, plugin)
	return &Ignored{Reason: why, Fix: fix}
}

// ignoredForVersion explains why the program ignores a file's CRI section because of the file's version; nil if the
// program reads the section.
func (d Daemon) ignoredForVersion(ctx context.Context, version string, all []File, i int, plugin string) *Ignored {
	f := all[i]
	newest := slices.MaxFunc(all, func(a, b File) int { return a.Version() - b.Version() })
	if f.Version() > 1 && newest.Version() == f.Version() || d.takesOver(ctx, all, i, plugin) {
		return nil
	}
	why := fmt.Sprintf("the file has no version, so containerd %s ignores the file's CRI settings", version)
	if f.Version() > 1 {
		why = fmt.Sprintf("the file has version %d, %s has version %d, and containerd %s ignores the CRI settings of the "+
			"file with the older version", f.Version(), newest.Name, newest.Version(), version)
	}
	return &Ignored{Reason: why, Fix: fmt.Sprintf("run 'containerd --config %[1]s config migrate', compare the output "+
		"with %[1]s, and copy the CRI settings from the output to %[1]s", f.Path)}
}

// takesOver reports whether the program reads a file's CRI section, or whether this is unknown. To find out, takesOver
// adds a new handler to the file.
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
