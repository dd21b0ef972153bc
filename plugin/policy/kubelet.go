// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import "errors"

// kubeletWord is what the kubelet says of a container's resources. It is asked at most once.
type kubeletWord struct {
	asked   bool
	names   []string
	refusal *Refusal
}

// resources gives the names of the resources that the container holds, or the refusal for where the kubelet's word is needed
// and there is none. A kubelet that cannot be asked at all is one that does not tell.
func (d *deciding) resources() ([]string, *Refusal) {
	k := &d.kubelet
	if k.asked {
		return k.names, k.refusal
	}
	k.asked = true
	err := errors.New("there is no kubelet to ask")
	if d.container.Resources != nil {
		k.names, _, err = d.container.Resources()
	}
	if err != nil {
		k.names, k.refusal = nil, refuse(CauseKubelet, "the kubelet did not tell which resources the container holds (%s): "+
			"the creation is tried again; if that does not help, see the kubelet's log on the node", oneLine(err.Error()))
	}
	return k.names, k.refusal
}
