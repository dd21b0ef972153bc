// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/rdma-spec/rdma-spec/spec"
)

// docker writes a daemon.json.
func docker(grant spec.Grant, _ []byte) ([]byte, error) {
	return fmt.Appendf(nil, `{
  "default-ulimits": {
    "memlock": {
      "Name": "memlock",
      "Hard": %[1]d,
      "Soft": %[1]d
    }
  }
}
`, signedBytes(grant.Memlock)), nil
}

// crio writes a drop-in for crio.conf.
func crio(grant spec.Grant, _ []byte) ([]byte, error) { return CRIO(grant.Memlock, nil), nil }

// CRIO returns a drop-in for crio.conf. others contains the limits in the node's other CRI-O files, in CRI-O's form
// name=SOFT:HARD. CRI-O does not merge lists from several files, so the drop-in repeats all of the other limits except
// memlock.
func CRIO(memlock spec.Limit, others []string) []byte {
	all := []string{}
	add := ". Add the\n# entries of the replaced lists to this list"
	for _, limit := range others {
		if name, _, _ := strings.Cut(limit, "="); !strings.EqualFold(strings.TrimSpace(name), "memlock") {
			all = append(all, strconv.Quote(limit))
			add = ", and\n# repeats the entries of the replaced lists"
		}
	}
	all = append(all, fmt.Sprintf(`"memlock=%[1]d:%[1]d"`, signedBytes(memlock)))
	return fmt.Appendf(nil, `# This drop-in sets memlock for RDMA in CRI-O.
# Save this drop-in as /etc/crio/crio.conf.d/90-rdma-spec.conf, and restart CRI-O.
# The setting affects every container that starts on this node afterward.
# This default_ulimits list replaces the lists of the same name in crio.conf and in earlier drop-ins%s.
[crio.runtime]
default_ulimits = [%s]
`, add, strings.Join(all, ", "))
}

// bottlerocket writes user data for a Bottlerocket node.
func bottlerocket(grant spec.Grant, _ []byte) ([]byte, error) {
	limit := `"unlimited"`
	if grant.Memlock <= math.MaxInt64 {
		limit = fmt.Sprint(uint64(grant.Memlock))
	}
	text := `# These settings configure memlock for RDMA on Bottlerocket.
# Add the settings to the node's user data, or pass this file to apiclient apply.
# The settings affect every pod that starts on this node afterward, but not host containers.
`
	if grant.IPCLock != spec.IPCLockNo {
		text += `
[settings.oci-defaults.capabilities]
ipc-lock = true
`
	}
	text += fmt.Sprintf(`
[settings.oci-defaults.resource-limits.max-locked-memory]
hard-limit = %[1]s
soft-limit = %[1]s
`, limit)
	return []byte(text), nil
}

// systemd writes a drop-in for a runtime's unit.
func systemd(grant spec.Grant, _ []byte) ([]byte, error) {
	limit := "infinity"
	if grant.Memlock.Finite() {
		limit = fmt.Sprint(uint64(grant.Memlock))
	}
	return fmt.Appendf(nil, `# This drop-in sets memlock for RDMA.
# Written by rdma-spec configure limits or rdma-spec generate --for systemd.
# Path: /etc/systemd/system/UNIT.d/90-rdma-spec-memlock.conf, where UNIT is a unit such as containerd.service.
# The limit applies to the daemon and to every container on this node whose spec sets no memlock.
# To apply the limit, run:
#   systemctl daemon-reload && systemctl restart containerd
[Service]
LimitMEMLOCK=%s
`, limit), nil
}

// signedBytes returns a limit in bytes, for platforms that write unlimited as -1, and cannot represent numbers above
// 2^63-1.
func signedBytes(limit spec.Limit) int64 {
	if limit > math.MaxInt64 {
		return -1
	}
	return int64(limit)
}
