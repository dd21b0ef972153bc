// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"bytes"
	"strings"
)

// idLength is the length of a container's ID: containerd's CRI and CRI-O both make 32 random bytes, in lower-case hex.
const idLength = 64

// containerOf returns the ID of the container that a process belongs to, from the text of its /proc/PID/cgroup; "" if
// it is in none.
//
// The path is the runtime's as far as the container's own cgroup, and below that it is the container's: a container
// that may write cgroups can call one by another container's ID. So of the IDs in a path the first one counts. Below
// user.slice, users of the node make cgroups and give them names: no container of a kubelet is there.
func containerOf(text []byte) string {
	for line := range bytes.Lines(text) {
		// hierarchy-ID:controllers:path; cgroup v2 is "0::path".
		fields := bytes.SplitN(bytes.TrimSuffix(line, []byte("\n")), []byte(":"), 3)
		if len(fields) != 3 {
			continue
		}
		path := strings.TrimSuffix(string(fields[2]), " (deleted)")
		for name := range strings.SplitSeq(path, "/") {
			id, monitor := idOf(name)
			if monitor || name == "user.slice" {
				return ""
			}
			if id != "" {
				return id
			}
		}
	}
	return ""
}

// idOf returns the container ID that a cgroup's name bears: ID, cri-containerd-ID.scope, crio-ID.scope, and PREFIX:ID
// where systemd's notation met the cgroupfs driver. monitor says that it is the cgroup of CRI-O's conmon, which watches
// over the container from outside.
func idOf(name string) (id string, monitor bool) {
	name = strings.TrimSuffix(name, ".scope")
	if len(name) < idLength {
		return "", false
	}
	prefix := name[:len(name)-idLength]
	id = name[len(name)-idLength:]
	if strings.Trim(id, "0123456789abcdef") != "" {
		return "", false
	}
	if prefix != "" && !strings.HasSuffix(prefix, "-") && !strings.HasSuffix(prefix, ":") {
		return "", false
	}
	return id, strings.Contains(prefix, "conmon")
}
