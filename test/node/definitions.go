// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// definedBy lists modules that define custom resources, and the files that contain the definitions.
var definedBy = []struct {
	module, sum string
	files       []string
}{
	{
		"github.com/prometheus-operator/prometheus-operator@v0.85.0", "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
		[]string{
			"example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
			"example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
		},
	},
	{
		"github.com/openshift/api@v0.0.0-20260420151639-34e60874783e", "h1:ENxXUo0uksvseiBAoOcL9wdEWtueEpu84RE8Hm0q3uY=",
		[]string{"payload-manifests/crds/0000_03_config-operator_01_securitycontextconstraints.crd.yaml"},
	},
}

// definitions returns the part that contains the CustomResourceDefinitions of PodMonitor, PrometheusRule, and
// SecurityContextConstraints.
func (r recipeBook) definitions() part {
	return part{name: "definitions", recipe: []string{fmt.Sprint(definedBy)}, cost: "10 s",
		build: func(ctx context.Context, dir string) error {
			for _, by := range definedBy {
				text, err := output(ctx, dir, nil, "go", "mod", "download", "-json", by.module)
				if err != nil {
					return err
				}
				var module struct{ Dir, Sum string }
				if err := json.Unmarshal([]byte(text), &module); err != nil {
					return err
				}
				if module.Sum != by.sum {
					return fmt.Errorf("%s has the checksum %s, want %s", by.module, module.Sum, by.sum)
				}
				for _, file := range by.files {
					content, err := os.ReadFile(filepath.Join(module.Dir, file))
					if err != nil {
						return err
					}
					if err := os.WriteFile(filepath.Join(dir, filepath.Base(file)), content, 0o644); err != nil {
						return err
					}
				}
			}
			return nil
		}}
}
