// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package chart makes the Helm chart's package. Its tests render it with Helm's own library, and write what is made of
// that: the plain manifests in deploy, the schema of its values, and the table of its README.md.
package chart

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
)

// Folder is where the chart is in the repository.
const Folder = "deploy/helm/nri-rdma"

// Load reads the chart of the repository with this top folder.
func Load(root string) (*chart.Chart, error) { return loader.LoadDir(filepath.Join(root, Folder)) }

// Package writes the chart of a version as an archive to a folder, and returns its path. All its files are of one time.
func Package(root, folder, version, appVersion string, date time.Time) (string, error) {
	c, err := Load(root)
	if err != nil {
		return "", err
	}
	c.Metadata.Version = version
	c.Metadata.AppVersion = appVersion
	const images = "artifacthub.io/images"
	c.Metadata.Annotations[images] = strings.ReplaceAll(c.Metadata.Annotations[images], ":devel", ":"+appVersion)
	c.StampModTimes(date)
	file, err := chartutil.Save(c, folder)
	if err != nil {
		return "", fmt.Errorf("the chart's package: %w", err)
	}
	return file, nil
}
