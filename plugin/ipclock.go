// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"time"
)

// crioLine gives IPC_LOCK to every container of a CRI-O node. It repeats CRI-O's own list (internal/config/capabilities, Default),
// which it replaces; TOML's quotes are single ones, so that they come through a log's double ones.
const crioLine = "crio.runtime.default_capabilities = ['CHOWN', 'DAC_OVERRIDE', 'FSETID', 'FOWNER', 'SETGID', 'SETUID', 'SETPCAP', " +
	"'NET_BIND_SERVICE', 'KILL', 'IPC_LOCK']"

// editsSpecs says whether containers can get CAP_IPC_LOCK under the runtime of the session, by an edit of their stored specs. Where they
// cannot, it says once what to do; memlock and devices do not depend on it.
func (s *session) editsSpecs() bool {
	if s.StoredSpecs == nil || s.noSpecs == "" {
		return s.StoredSpecs != nil
	}
	message := "RDMA containers get memlock and devices here, but no CAP_IPC_LOCK: " + s.noSpecs
	s.faults.say(message, time.Now(), func(int) { s.Log.Warn(message) })
	return false
}

// whyNoSpecs says why no stored spec can be edited under a runtime, and what to do; "" where one can.
func whyNoSpecs(specs StoredSpecs, runtime string) string {
	const inPod = "what needs it has to ask for it in its pod, securityContext.capabilities.add: [IPC_LOCK]"
	switch {
	case specs == nil:
		return ""
	case runtime == "cri-o":
		return "CRI-O has no API to change a container's spec; " + inPod + ", or every container of the node gets it from CRI-O, by this line " +
			"in a file of its own, /etc/crio/crio.conf.d/91-rdma-ipc-lock.conf, in place of CRI-O's list: " + crioLine
	case runtime != "containerd":
		return fmt.Sprintf("%s has no API to change a container's spec that is known here; %s", runtime, inPod)
	}
	if err := specs.Possible(); err != nil {
		return err.Error() + "; without it, " + inPod
	}
	return ""
}
