// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec/places"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

// CRIONRIOff contains the CRI-O settings that turn off NRI, with the value that turns off NRI.
var CRIONRIOff = map[string]bool{"enable_nri": false, "nri_disable_connections": true}

// crioKinds are the CRI-O settings that this package reads, each with a value of the required type.
var crioKinds = []struct {
	table, key string
	kind       any
	says       string
}{
	{"nri", "enable_nri", true, "true or false without quotes"},
	{"nri", "nri_disable_connections", true, "true or false without quotes"},
	{"nri", "nri_listen", "", "a string"},
	{"api", "listen", "", "a string"},
	{"runtime", "default_ulimits", []any{}, "a list of strings"},
}

// CRIO is the configuration of CRI-O.
type CRIO struct {
	Config  string    // the main file's path on the node
	DropIns string    // the directory of the other files, under the root
	Said    []CRIOSay // in the order in which CRI-O reads them; the last value applies
}

// CRIOSay contains the settings from one source: a file or the command line.
type CRIOSay struct {
	Path string
	Tree map[string]any
}

// ReadCRIO returns the configuration of the CRI-O under a root. The flags come from the running process, or else from
// the unit. The sources are crio.conf, then all files under crio.conf.d, and finally the flags. An error is the reason
// why CRI-O does not start with this configuration.
func ReadCRIO(root string) (CRIO, error) { return readCRIO(process.ReadTable(root)) }

func readCRIO(t process.Table) (CRIO, error) {
	root := t.Root
	starts := process.Starts(root, places.CRIO.Units[0])
	for _, p := range t.Called(processCRIO) {
		if p.OnNode {
			starts = p
		}
	}
	told := starts.Flag("--config", "-c")
	c := CRIO{Config: cmp.Or(told, places.CRIO.Config),
		DropIns: files.Below(root, cmp.Or(starts.Flag("--config-dir", "-d"), places.CRIO.DropIns))}
	paths := []string{files.Below(root, c.Config)}
	if _, err := os.Stat(paths[0]); told != "" && err != nil {
		return c, fmt.Errorf("cannot read %s, which CRI-O's --config flag specifies: %w", paths[0], files.Cause(err))
	}
	err := filepath.WalkDir(c.DropIns, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return c, fmt.Errorf("cannot read %s: %w", c.DropIns, files.Cause(err))
	}
	for _, path := range paths {
		text, err := files.Content(path)
		if err != nil {
			return c, err
		}
		tree, err := tomledit.Parse(text)
		if err != nil {
			return c, fmt.Errorf("%s: %w", path, err)
		}
		for _, k := range crioKinds {
			value, says := tomledit.Lookup(tree, "crio", k.table, k.key)
			if says && reflect.TypeOf(value) != reflect.TypeOf(k.kind) {
				return c, fmt.Errorf("%s in the [crio.%s] section of %s is %#v, which prevents CRI-O from starting: write %s",
					k.key, k.table, path, value, k.says)
			}
		}
		c.Said = append(c.Said, CRIOSay{path, tree})
	}
	c.Said = append(c.Said, crioFlags(starts))
	return c, nil
}

// crioFlags returns the settings from CRI-O's flags. Each flag has the name of its setting.
func crioFlags(p process.Process) CRIOSay {
	tree := map[string]any{}
	for _, k := range crioKinds {
		flag := "--" + strings.ReplaceAll(k.key, "_", "-")
		text := p.Flag(flag)
		var value any = text
		said := text != ""
		switch k.kind.(type) {
		case bool:
			value, said = p.Switch(flag)
		case []any:
			var elements []any
			for element := range strings.SplitSeq(text, ",") {
				elements = append(elements, element)
			}
			value = elements
		}
		if said {
			tomledit.Put(tree, value, "crio", k.table, k.key)
		}
	}
	return CRIOSay{"CRI-O's command line", tree}
}

// Last returns the value of a setting that applies, and the source of the value; nil if the setting has no value.
func (c CRIO) Last(table, key string) (value any, place string) {
	for _, say := range slices.Backward(c.Said) {
		if value, says := tomledit.Lookup(say.Tree, "crio", table, key); says {
			return value, say.Path
		}
	}
	return nil, ""
}

// Around returns the sources that CRI-O reads before and after a drop-in file, even if the file does not exist. For a
// file in another directory, all sources are in before.
func (c CRIO) Around(file string) (before, after CRIO) {
	before = c
	after = c
	before.Said = nil
	after.Said = nil
	of, errOf := os.Stat(filepath.Dir(file))
	dir, errDir := os.Stat(c.DropIns)
	inDir := filepath.Dir(file) == c.DropIns || errOf == nil && errDir == nil && os.SameFile(of, dir)
	for i, say := range c.Said {
		name, isDropIn := strings.CutPrefix(say.Path, c.DropIns+"/")
		first, _, _ := strings.Cut(name, "/")
		switch {
		case inDir && isDropIn && name == filepath.Base(file):
		case inDir && (i == len(c.Said)-1 || isDropIn && first > filepath.Base(file)):
			after.Said = append(after.Said, say)
		default:
			before.Said = append(before.Said, say)
		}
	}
	return before, after
}

// readCRIO reads the settings for RDMA containers from the files of the node's CRI-O. NRI is on by default, as in CRI-O
// 1.30.
func (r *Runtime) readCRIO(t process.Table) error {
	said, err := readCRIO(t)
	r.Config = said.Config
	if err != nil {
		return err
	}
	last := func(table, key string) any {
		value, _ := said.Last(table, key)
		return value
	}
	listen, _ := last("api", "listen").(string)
	socket, _ := last("nri", "nri_listen").(string)
	r.Known = true
	r.Socket = cmp.Or(listen, r.Socket, places.CRIO.Socket)
	r.NRI.Socket = cmp.Or(socket, places.NRISocket)
	for _, key := range []string{"nri_disable_connections", "enable_nri"} {
		if off := CRIONRIOff[key]; last("nri", key) == off {
			r.NRI.Off = fmt.Sprintf("%s = %v", key, off)
		}
	}
	r.NRI.On = r.NRI.Off == ""
	elements, _ := last("runtime", "default_ulimits").([]any)
	for _, element := range elements {
		name, limits, _ := strings.Cut(fmt.Sprint(element), "=") // memlock=SOFT:HARD
		soft, _, _ := strings.Cut(limits, ":")
		if bytes, err := strconv.ParseInt(soft, 10, 64); err == nil && strings.EqualFold(name, "memlock") {
			memlock := spec.LimitOf(uint64(bytes)) // -1 is unlimited
			r.DefaultMemlock = &memlock
		}
	}
	return nil
}

// HasCRIO reports whether CRI-O might be installed under a root. Tools that configure CRI-O also create its directory.
func HasCRIO(root string) bool {
	return containerd.Exists(files.Below(root, filepath.Dir(places.CRIO.Config)))
}

// installedCRIO reports whether CRI-O is installed under a root. It looks for CRI-O's program, unit, and packaged
// files.
func installedCRIO(root string) bool {
	brings := append([]string{places.CRIO.Config, places.CRIO.DropIns + "/10-crio.conf"}, places.CRIO.Programs...)
	return process.HasUnit(root, places.CRIO.Units[0]) || slices.ContainsFunc(brings, func(file string) bool {
		return containerd.Exists(files.Below(root, file))
	})
}
