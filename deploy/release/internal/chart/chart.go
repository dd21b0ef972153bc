// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package chart renders the Helm chart with Helm's own library, and what is made of it: the plain manifests in deploy,
// the schema of its values, and its package.
package chart

import (
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/engine"
)

// Folder is where the chart is in the repository.
const Folder = "deploy/helm/nri-rdma"

// namespace is that of the plain manifests.
const namespace = "rdma-spec"

// Values are what a user sets, over the chart's own values.
type Values = map[string]any

// Load reads the chart of the repository with this top folder.
func Load(root string) (*chart.Chart, error) { return loader.LoadDir(filepath.Join(root, Folder)) }

// Render returns what Helm makes of each template that makes something, by its file name. Values that the schema
// rejects are an error.
func Render(c *chart.Chart, values Values) (map[string]string, error) {
	options := common.ReleaseOptions{Name: "nri-rdma", Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(c, values, options, nil)
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

// Package writes the chart of a version as an archive to a folder, and returns its path. All its files are of one time.
func Package(root, folder, version, appVersion string, date time.Time) (string, error) {
	c, err := Load(root)
	if err != nil {
		return "", err
	}
	c.Metadata.Version, c.Metadata.AppVersion = version, appVersion
	c.StampModTimes(date)
	file, err := chartutil.Save(c, folder)
	if err != nil {
		return "", fmt.Errorf("the chart's package: %w", err)
	}
	return file, nil
}
