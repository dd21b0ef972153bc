// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
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

// CRIONRIOff are the settings of CRI-O's that turn NRI off, with the value that does.
var CRIONRIOff = map[string]bool{"enable_nri": false, "nri_disable_connections": true}

// crioKinds are the settings that are read here, each with a value of the kind that CRI-O takes.
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

// CRIOFile is a file of CRI-O's configuration.
type CRIOFile struct {
	Path string
	Tree map[string]any
}

// CRIOFiles returns the configuration of the CRI-O below a root in the order in which CRI-O reads it: crio.conf, and
// then all files of crio.conf.d in the order of their names. The last word counts. The error is why CRI-O does not start
// with them.
func CRIOFiles(root string) (found []CRIOFile, err error) {
	folder := files.Below(root, places.CRIO.DropIns)
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot read %s: %w", folder, files.Cause(err))
	}
	paths := []string{files.Below(root, places.CRIO.Config)}
	for _, entry := range entries {
		if !entry.IsDir() {
			paths = append(paths, files.Below(root, places.CRIO.DropIns+"/"+entry.Name()))
		}
	}
	for _, path := range paths {
		text, err := files.Content(path)
		if err != nil {
			return nil, err
		}
		tree, err := tomledit.Parse(bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))) // its parser skips a byte order mark
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		for _, k := range crioKinds {
			value, says := tomledit.Lookup(tree, "crio", k.table, k.key)
			if says && reflect.TypeOf(value) != reflect.TypeOf(k.kind) {
				return nil, fmt.Errorf("%s: %s in the section [crio.%s] is %#v, and CRI-O does not start with it: write %s", path,
					k.key, k.table, value, k.says)
			}
		}
		found = append(found, CRIOFile{path, tree})
	}
	return found, nil
}

// CRIOLast returns the last word of files on a setting, and the file that has it; nil where there is none.
func CRIOLast(all []CRIOFile, table, key string) (value any, file string) {
	for _, f := range slices.Backward(all) {
		if value, says := tomledit.Lookup(f.Tree, "crio", table, key); says {
			return value, f.Path
		}
	}
	return nil, ""
}

// readCRIO reads what RDMA containers depend on in the files of the CRI-O below a root. NRI is on where they do not say
// otherwise, as in CRI-O 1.30.
func (r *Runtime) readCRIO(root string) error {
	files, err := CRIOFiles(root)
	if err != nil {
		return err
	}
	last := func(table, key string) any {
		value, _ := CRIOLast(files, table, key)
		return value
	}
	listen, _ := last("api", "listen").(string)
	socket, _ := last("nri", "nri_listen").(string)
	r.Known, r.Socket, r.NRI.Socket = true, cmp.Or(listen, r.Socket, places.CRIO.Socket), cmp.Or(socket, places.NRISocket)
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
			memlock := spec.LimitOf(uint64(bytes)) //nolint:gosec // -1 is unlimited
			r.DefaultMemlock = &memlock
		}
	}
	return nil
}

// HasCRIO reports whether CRI-O may be installed below a root. Tools that configure it make its folder as well.
func HasCRIO(root string) bool {
	return containerd.Exists(files.Below(root, filepath.Dir(places.CRIO.Config)))
}

// installedCRIO reports whether CRI-O is installed below a root: its program, its unit, or a file that it brings.
func installedCRIO(root string) bool {
	brings := append([]string{places.CRIO.Config, places.CRIO.DropIns + "/10-crio.conf"}, places.CRIO.Programs...)
	return process.HasUnit(root, places.CRIO.Units[0]) || slices.ContainsFunc(brings, func(file string) bool {
		return containerd.Exists(files.Below(root, file))
	})
}
