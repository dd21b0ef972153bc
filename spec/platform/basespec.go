// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/baseline"
)

// containerd writes a base_runtime_spec file.
func containerd(grant spec.Grant, base []byte) ([]byte, error) {
	if base == nil {
		var err error
		if base, err = baseline.Default(); err != nil {
			return nil, err
		}
	}
	text, err := grant.Apply(base, spec.BaseSets)
	if err != nil {
		return nil, err
	}
	return baseline.Indent(text)
}

// nodeadm writes a NodeConfig. If a base spec is given, the NodeConfig contains the whole base spec. If no base spec is
// given, the NodeConfig contains only the differences from nodeadm's own base spec. The program nodeadm merges the
// NodeConfig into its own base spec, and replaces whole lists, so the NodeConfig repeats nodeadm's RLIMIT_NOFILE
// (awslabs/amazon-eks-ami, nodeadm/internal/containerd/base-runtime-spec.json).
func nodeadm(grant spec.Grant, base []byte) ([]byte, error) {
	overrides, err := overrides(grant, base, specs.POSIXRlimit{Type: "RLIMIT_NOFILE", Hard: 1048576, Soft: 65536})
	if err != nil {
		return nil, err
	}
	return commentedYAML(`This NodeConfig sets memlock for RDMA on EKS AL2023 (nodeadm).
Add this NodeConfig to the node's user data, after the NodeConfig that contains the cluster's name.
The settings affect every container on the node.
Each list in this NodeConfig replaces nodeadm's list, and therefore repeats nodeadm's entries.
Unlimited is written as 2^63-1, because nodeadm converts numbers to floating point, which cannot represent 2^64-1.
`, map[string]any{
		"apiVersion": "node.eks.aws/v1alpha1",
		"kind":       "NodeConfig",
		"spec":       map[string]any{"containerd": map[string]any{"baseRuntimeSpec": overrides}},
	})
}

// talos writes a document of the machine configuration with the differences from Talos's own base spec. The document
// contains whole lists. If Talos appends the lists to its own lists, the duplicate entries do no harm.
func talos(grant spec.Grant, _ []byte) ([]byte, error) {
	overrides, err := overrides(grant, nil)
	if err != nil {
		return nil, err
	}
	return commentedYAML(`This document sets memlock for RDMA on Talos Linux 1.14 and later.
To add this document to the machine configuration, run: talosctl patch machineconfig --patch @FILE
Talos then restarts the container runtime. The change affects every container that starts on the node afterward.
On Talos Linux before 1.14, write the content of overrides under machine.baseRuntimeSpecOverrides, and reboot the node.
Unlimited is written as 2^63-1.
`, map[string]any{"apiVersion": "v1alpha1", "kind": "CRIBaseRuntimeSpecConfig", "overrides": overrides})
}

// ownLists returns a spec that contains only the lists to which a grant adds. The rlimits are the given rlimits, which
// the platform's own base spec contains. The other lists come from containerd's default spec, from which every
// platform's base spec derives.
func ownLists(grant spec.Grant, rlimits ...specs.POSIXRlimit) ([]byte, error) {
	text, err := baseline.Default()
	if err != nil {
		return nil, err
	}
	var whole specs.Spec
	if err := json.Unmarshal(text, &whole); err != nil {
		return nil, err
	}
	process := map[string]any{"rlimits": rlimits}
	lists := map[string]any{"process": process}
	if grant.IPCLock != spec.IPCLockNo {
		process["capabilities"] = whole.Process.Capabilities
	}
	if len(grant.Devices) > 0 {
		lists["linux"] = map[string]any{"resources": map[string]any{"devices": whole.Linux.Resources.Devices}}
	}
	return json.Marshal(lists)
}

// overrides applies a grant to a base spec, or to ownLists if base is nil, for a platform that converts numbers to
// float64. It reduces numbers above 2^63-1 to 2^63-1. As a limit, 2^63-1 is 8 EiB, which is more than any node can
// lock. If the platform would change any other number, overrides returns an error.
func overrides(grant spec.Grant, base []byte, own ...specs.POSIXRlimit) (any, error) {
	var err error
	if base == nil {
		base, err = ownLists(grant, own...)
	}
	if err == nil {
		base, err = grant.Apply(base, spec.BaseSets)
	}
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(base))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, err
	}
	return signedNumbers(value)
}

func signedNumbers(value any) (any, error) {
	var err error
	switch v := value.(type) {
	case map[string]any:
		for key := range v {
			if v[key], err = signedNumbers(v[key]); err != nil {
				return nil, err
			}
		}
	case []any:
		for i := range v {
			if v[i], err = signedNumbers(v[i]); err != nil {
				return nil, err
			}
		}
	case json.Number:
		if n, err := strconv.ParseUint(v.String(), 10, 64); err == nil && n >= math.MaxInt64 {
			return int64(math.MaxInt64), nil
		}
		if n, err := strconv.ParseInt(v.String(), 10, 64); err == nil && int64(float64(n)) == n {
			return n, nil
		}
		return nil, fmt.Errorf("the spec contains the number %s, which this platform cannot represent: write a whole "+
			"number up to 2^53, or 9223372036854775807 for unlimited", v)
	}
	return value, nil
}

// commentedYAML returns a document as YAML, with a comment above the document.
func commentedYAML(comment string, document any) ([]byte, error) {
	text, err := yaml.Marshal(document)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	for line := range bytes.Lines([]byte(comment)) {
		out.WriteString("# ")
		out.Write(line)
	}
	return slices.Concat(out.Bytes(), text), nil
}
