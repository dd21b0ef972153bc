// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/rdma-spec/rdma-spec/cmd/internal/explain/manifest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// Facts are the facts that come from a pod's spec alone.
type Facts struct {
	Configuration string   // the configuration: a file, or "defaults"
	Lines         []string // a line for each fact
	NotRDMA       []string // the containers that are not RDMA containers
}

// PodFacts explains a pod in the API server's JSON, with the policy from a configuration file. If config is "", it uses
// the default policy.
func PodFacts(pod []byte, config string) (facts Facts, err error) {
	p, source, err := policy.LoadOr(config, "")
	if err != nil {
		return facts, err
	}
	m, err := manifest.Read(bytes.NewReader(pod))
	if err != nil {
		return facts, err
	}
	facts.Configuration = source
	e := Explainer{Policy: p, Node: &hca.Inventory{}}
	for _, pod := range m.Pods {
		facts.Lines = append(facts.Lines, slices.Concat(pod.Problems, pod.Notes)...)
		for _, c := range pod.Containers {
			explained, err := e.Container(pod, c)
			if err != nil {
				return facts, err
			}
			if explained.Verdict == NotRDMA {
				facts.NotRDMA = append(facts.NotRDMA, c.Name)
			}
			for _, line := range slices.Concat([]string{explained.Summary}, explained.Decision.Warnings, explained.Notes,
				explained.Advice) {
				facts.Lines = append(facts.Lines, fmt.Sprintf("%s: %s", c.Name, line))
			}
		}
	}
	return facts, nil
}
