// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"errors"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// The devices of an image are the character devices in its own /dev/infiniband, by their numbers.
func TestDevicesOfAnImage(t *testing.T) {
	root := scratch.Dir(t, "dev/infiniband")
	dir := filepath.Join(root, "dev/infiniband")
	for name, mode := range map[string]uint32{"uverbs1": syscall.S_IFCHR, "block": syscall.S_IFBLK} {
		err := syscall.Mknod(filepath.Join(dir, name), mode|0o600, int(unix.Mkdev(231, 193)))
		if errors.Is(err, syscall.EPERM) {
			t.Skip("only root can make device nodes")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	scratch.Files(t, dir, map[string]string{"uverbs2": "", "uverbs3": "-> /dev/null"}, 0o600) // of the image, which has none
	if diff := cmp.Diff([]hca.Number{{Major: 231, Minor: 193}}, ReadImage(root, nil).Devices); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	if got := ReadImage(scratch.Dir(t), nil).Devices; got != nil {
		t.Errorf("an image without /dev/infiniband has %v", got)
	}
}
