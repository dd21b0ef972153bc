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

// mostAddress is the maximum size of the file with an interface's address, in bytes.
const mostAddress = 4 << 10

// Image contains the information from a container's files.
type Image struct {
	LibVerbs  string            `json:"libVerbs,omitempty"`  // the path of libibverbs, in a directory of a distribution
	Providers map[string]string `json:"providers,omitempty"` // files of libibverbs' providers, such as mlx5 and rxe
	// the addresses that the kernel derives from the interfaces' MAC addresses for GIDs
	LinkLocal []netip.Addr   `json:"linkLocal,omitempty"`
	MTU       map[string]int `json:"mtu,omitempty"` // by interface
	// the character devices in the container's /dev/infiniband, from any source
	Devices []hca.Number `json:"devices,omitempty"`
}

// providerName matches the file name of a provider.
var providerName = regexp.MustCompile(`^lib(.+)-rdmav[0-9]+\.so$`)

// ReadImage reads a container's files under a directory, and the MAC addresses of the container's interfaces. If the
// process has left the network namespace of its sysfs mount, sysfs shows other interfaces. ReadImage ignores dangling
// links.
func ReadImage(dir string, links []Link) (has Image) {
	tree, err := files.Open(dir)
	if err != nil {
		return has
	}
	defer func() { _ = tree.Close() }() // opened only for reading
	regular := func(pattern string) (found []string) {
		names, _ := tree.Match(pattern) // unlistable files count as missing
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
		// Vendors' drivers install their providers next to libibverbs.
		for _, file := range slices.Concat(regular(lib+"/libibverbs/lib*.so"), regular(lib+"/lib*-rdmav*.so")) {
			if name := providerName.FindStringSubmatch(path.Base(file)); name != nil && has.Providers[name[1]] == "" {
				has.Providers[name[1]] = "/" + file
			}
		}
	}
	nodes, _ := tree.Match("dev/infiniband/*") // unlistable files count as missing
	for _, name := range nodes {
		if info, err := tree.Stat(name); err == nil && info.Mode()&fs.ModeCharDevice != 0 {
			if stat, ok := info.Sys().(*syscall.Stat_t); ok {
				has.Devices = append(has.Devices, hca.Number{Major: unix.Major(stat.Rdev), Minor: unix.Minor(stat.Rdev)})
			}
		}
	}
	for _, l := range links {
		text, _ := tree.Read("sys/class/net/"+l.Name+"/address", mostAddress) // the file is gone
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
