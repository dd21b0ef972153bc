// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"testing"
)

// BenchmarkDecide measures what every container of a node waits for. The node's inventory is held in memory for all but
// the live cases: those also read sysfs, from a copy.
func BenchmarkDecide(b *testing.B) {
	var gpus []Device
	for i := range 10 {
		gpus = append(gpus, gpu(i))
	}
	other := map[string]string{}
	for i := range 10 {
		other[fmt.Sprintf("kubernetes.io/annotation-%d", i)] = "value"
	}
	var many string
	for i := range 50 {
		many += fmt.Sprintf("- {match: {namespaces: [team-%d-*], resources: [rdma/a]}, memlock: 1Gi}\n", i)
	}
	fixed, live := fixedNode(b), testNodes(b)["EightHCA"]
	for _, c := range []struct {
		name, config string
		container    Container
		node         Facts
	}{
		{"unrelated", "", Container{Namespace: "web", Name: "c"}, fixed},
		{"unrelated-with-annotations", restrictive, Container{Namespace: "web", Name: "c", Annotations: other,
			Resources: holds()}, fixed},
		{"unrelated-50-rules", "rules:\n" + many, Container{Namespace: "web", Name: "c"}, fixed},
		{"ten-gpus", "", Container{Namespace: "web", Name: "c", Devices: gpus}, fixed},
		{"ten-gpus-live", "", Container{Namespace: "web", Name: "c", Devices: gpus}, live},
		{"rdma-device", "", Container{Namespace: "web", Name: "c", Devices: []Device{heldVerbs(1)}}, fixed},
		{"rdma-device-live", "", Container{Namespace: "web", Name: "c", Devices: []Device{heldVerbs(1)}}, live},
		{"annotation-true", listed, Container{Namespace: "ml-a", Name: "c", Annotations: podAnnotation("true")}, fixed},
		{"annotation-yaml", listed, Container{Namespace: "ml-a", Name: "c",
			Annotations: podAnnotation("{memlock: 16Gi, ipcLock: false, devices: all}")}, fixed},
		{"annotation-live", listed, Container{Namespace: "ml-a", Name: "c", Annotations: podAnnotation("true")}, live},
	} {
		b.Run(c.name, func(b *testing.B) {
			p := policyOf(b, c.config)
			b.ReportAllocs()
			for b.Loop() {
				p.Decide(c.container, c.node)
			}
		})
	}
}
