// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"bytes"
	"strings"
)

// idLength is the length of a container's ID. containerd's CRI plugin and CRI-O both generate 32 random bytes, and
// write them in lowercase hex.
const idLength = 64

// containerOf returns the ID of the container that a process belongs to, or "" if the process is in no container. The
// text is the content of the process's /proc/PID/cgroup.
//
// The runtime sets the path down to the container's own cgroup. The container sets the rest of the path: if a container
// can write cgroups, it can use another container's ID as a cgroup's name. Therefore, the first ID in the path applies.
// Below user.slice, the node's users create and name cgroups, and the kubelet has no containers.
func containerOf(text []byte) string {
	for line := range bytes.Lines(text) {
		// The format is hierarchy-ID:controllers:path, or 0::path with cgroup v2.
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

// idOf returns the container ID in a cgroup's name. The possible names are ID, cri-containerd-ID.scope, crio-ID.scope,
// and, if systemd's notation was used with the cgroupfs driver, PREFIX:ID. The result monitor is true for the cgroup of
// CRI-O's conmon, which monitors the container from outside.
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
