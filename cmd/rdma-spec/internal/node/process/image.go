// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"io/fs"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/verbs"
	"github.com/rdma-spec/rdma-spec/spec/files"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// mostAddress bounds the file of an interface's address, in bytes.
const mostAddress = 4 << 10

// Image is what the files of a container tell.
type Image struct {
	LibVerbs  string            `json:"libVerbs,omitempty"`  // libibverbs, where distributions put it
	Providers map[string]string `json:"providers,omitempty"` // of libibverbs: mlx5, rxe; and their files
	// what the kernel makes of its interfaces' MAC addresses for GIDs
	LinkLocal []netip.Addr   `json:"linkLocal,omitempty"`
	MTU       map[string]int `json:"mtu,omitempty"` // of its interfaces
	// the character devices of its /dev/infiniband, whoever has put them there
	Devices []hca.Number `json:"devices,omitempty"`
}

// providerName is the file of a provider.
var providerName = regexp.MustCompile(`^lib(.+)-rdmav[0-9]+\.so$`)

// ReadImage looks at a container's files below a directory, and at the MAC addresses of its interfaces: sysfs has
// others where the process has left the network namespace that it was mounted for. A link that leads nowhere is no
// file.
func ReadImage(dir string, links []Link) (has Image) {
	tree, err := files.Open(dir)
	if err != nil {
		return has
	}
	defer func() { _ = tree.Close() }() // it was only read
	regular := func(pattern string) (found []string) {
		names, _ := tree.Match(pattern) // what cannot be listed is not there
		for _, name := range names {
			if info, err := tree.Stat(name); err == nil && info.Mode().IsRegular() {
				found = append(found, name)
			}
		}
		return found
	}
	has.Providers = map[string]string{}
	has.MTU = map[string]int{}
	for _, lib := range verbs.LibraryDirs {
		for _, file := range regular(lib + "/libibverbs.so.1") {
			if has.LibVerbs == "" {
				has.LibVerbs = "/" + file
			}
		}
		// Vendors' drivers have theirs beside it.
		for _, file := range slices.Concat(regular(lib+"/libibverbs/lib*.so"), regular(lib+"/lib*-rdmav*.so")) {
			if name := providerName.FindStringSubmatch(path.Base(file)); name != nil && has.Providers[name[1]] == "" {
				has.Providers[name[1]] = "/" + file
			}
		}
	}
	nodes, _ := tree.Match("dev/infiniband/*") // what cannot be listed is not there
	for _, name := range nodes {
		if info, err := tree.Stat(name); err == nil && info.Mode()&fs.ModeCharDevice != 0 {
			if stat, ok := info.Sys().(*syscall.Stat_t); ok {
				has.Devices = append(has.Devices, hca.Number{Major: unix.Major(stat.Rdev), Minor: unix.Minor(stat.Rdev)})
			}
		}
	}
	for _, l := range links {
		text, _ := tree.Read("sys/class/net/"+l.Name+"/address", mostAddress) // it is gone
		if address, ok := linkLocal(string(text)); ok {
			has.LinkLocal = append(has.LinkLocal, address)
		}
		text, _ = tree.Read("sys/class/net/"+l.Name+"/mtu", mostAddress)
		if mtu, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			has.MTU[l.Name] = mtu
		}
	}
	return has
}
