// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
)

// kernelChecks are about what the kernel's log has.
func kernelChecks() []doctor.Check {
	return []doctor.Check{{
		ID: "module-symbols", Family: "kernel log",
		Title:    "No RDMA module was refused because it was built for other modules.",
		Messages: []string{"could not insert 'nvidia_peermem': Invalid argument", "disagrees about version of symbol"},
		Why:      "A module that was built against another ib_core is not loaded.",
		Reads:    []string{"sys/module/*"}, Look: withLog(refusedModules),
	}, {
		ID: "security-denials", Family: "kernel log",
		Title:    "Neither SELinux nor AppArmor denied RDMA within the last hour.",
		Messages: []string{"avc: denied { ipc_lock }", `apparmor="DENIED"`},
		Why:      "A security module refuses what the device's mode and the container's capabilities allow.",
		Look:     withLog(Denials),
	}}
}

// withLog looks at the kernel's log.
func withLog(look func(*doctor.View, node.KernelLog) []doctor.Finding) func(*doctor.View) []doctor.Finding {
	return func(v *doctor.View) []doctor.Finding {
		log, err := v.KernelLog()
		if err != nil {
			return []doctor.Finding{doctor.Unsure("", fmt.Sprintf("The kernel's log cannot be read: %v.", err))}
		}
		return look(v, log)
	}
}

var refusedModule = regexp.MustCompile(`(?:^|\s)([a-z0-9_]+): disagrees about version of symbol ([A-Za-z0-9_]+)`)

// refusedModules finds modules that the kernel refused and that are still not loaded.
func refusedModules(v *doctor.View, log node.KernelLog) []doctor.Finding {
	var found []doctor.Finding
	seen := map[string]bool{}
	for _, line := range log.Lines {
		refused := refusedModule.FindStringSubmatch(line.Text)
		if refused == nil || seen[refused[1]] {
			continue
		}
		seen[refused[1]] = true
		if loaded, err := v.Exists("sys/module/" + refused[1]); loaded || err != nil {
			continue
		}
		cure := "Install the module's package again, after the one of OFED or DOCA, and: modprobe " + refused[1]
		if refused[1] == "nvidia_peermem" {
			cure = "Rebuild the GPU driver now that OFED or DOCA is installed (with the GPU operator, delete the node's " +
				"driver pod), and: modprobe nvidia_peermem"
		}
		found = append(found, doctor.Fault("module "+refused[1],
			"The kernel refused it: it was built for another version of "+refused[2]+".", cure))
	}
	return found
}

var denial = regexp.MustCompile(`(?i)(avc:\s+denied|apparmor="DENIED").*(infiniband|uverbs|rdma_cm|ipc_lock)`)

// Denials finds what a security module denied. Older denials do not count, so that the finding goes when the cause
// does.
func Denials(_ *doctor.View, log node.KernelLog) []doctor.Finding {
	const recent = float64(60 * 60)
	last, count := "", 0
	for _, line := range log.Lines {
		if log.Now-line.At < recent && denial.MatchString(line.Text) {
			last, count = line.Text, count+1
		}
	}
	if count == 0 {
		return nil
	}
	cure := "setsebool -P container_use_devices on"
	if strings.Contains(strings.ToLower(last), "apparmor") {
		cure = "Set securityContext.appArmorProfile.type of the container to Unconfined, or allow it in the profile."
	}
	const most = 200
	return []doctor.Finding{doctor.Fault("", fmt.Sprintf("%d denials, at last: %s", count,
		last[:min(len(last), most)]), cure)}
}
