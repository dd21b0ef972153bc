// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"bytes"
	"strings"
)

// idLength is the length of a container's ID: containerd's CRI and CRI-O both generate 32 random bytes, in lowercase
// hex.
const idLength = 64

// containerOf returns the ID of the container that a process belongs to, from the text of its /proc/PID/cgroup; "" if
// it is in none.
//
// The runtime decides the path down to the container's own cgroup, and the container decides the rest: a container that
// can write cgroups can name one after another container's ID. Therefore, the first ID in the path applies. Below
// user.slice, the node's users create and name cgroups, and no kubelet's containers are there.
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

// idOf returns the container ID in a cgroup's name: ID, cri-containerd-ID.scope, crio-ID.scope, or PREFIX:ID if
// systemd's notation was used with the cgroupfs driver. It returns monitor as true for the cgroup of CRI-O's conmon,
// which monitors the container from outside.
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
