// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"maps"
	"path"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/engine"
)

// The namespace and the release of the plain manifests.
const (
	namespace = "rdma-spec"
	release   = "nri-rdma"
)

// testPod is the template of what helm test runs.
const testPod = "status.yaml"

// Values are what a user sets, over the chart's own values.
type Values = map[string]any

// Render returns what Helm makes of each template of a chart, and of those that it depends on, that makes something for
// a release, by its file name. Values that the schema rejects are an error.
func Render(c *chart.Chart, release string, values Values) (map[string]string, error) {
	return renderOn(newest, c, release, values)
}

// newest has all that the chart can ask for. Helm's own default is that of its build, which has none here.
var newest = common.KubeVersion{Version: "v1.36.0", Major: "1", Minor: "36"}

// renderOn is Render for a version of Kubernetes.
func renderOn(version common.KubeVersion, c *chart.Chart, release string, values Values) (map[string]string, error) {
	if err := chartutil.ProcessDependencies(c, values); err != nil {
		return nil, err
	}
	options := common.ReleaseOptions{Name: release, Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(c, values, options, &common.Capabilities{KubeVersion: version})
	if err != nil {
		return nil, err
	}
	texts, err := engine.Render(c, all)
	if err != nil {
		return nil, err
	}
	rendered := map[string]string{}
	for file, text := range texts {
		if strings.TrimSpace(text) != "" {
			rendered[path.Base(file)] = strings.TrimSpace(text) + "\n"
		}
	}
	return rendered, nil
}

// Objects returns the manifests of a rendering as one text.
func Objects(rendered map[string]string) string {
	var texts []string
	for _, file := range slices.Sorted(maps.Keys(rendered)) {
		if strings.HasSuffix(file, ".yaml") {
			texts = append(texts, rendered[file])
		}
	}
	return strings.Join(texts, "---\n")
}
