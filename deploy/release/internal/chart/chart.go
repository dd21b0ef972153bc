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

// Dir is where the chart is in the repository.
const Dir = "deploy/helm/nri-rdma"

// Load reads the chart of the repository with this top directory.
func Load(root string) (*chart.Chart, error) { return loader.LoadDir(filepath.Join(root, Dir)) }

// Package writes the chart of a version as an archive to a directory, and returns its path. All its files are of one
// time.
func Package(root, dir, version, appVersion string, date time.Time) (string, error) {
	c, err := Load(root)
	if err != nil {
		return "", err
	}
	c.Metadata.Version = version
	c.Metadata.AppVersion = appVersion
	const images = "artifacthub.io/images"
	c.Metadata.Annotations[images] = strings.ReplaceAll(c.Metadata.Annotations[images], ":devel", ":"+appVersion)
	c.StampModTimes(date)
	file, err := chartutil.Save(c, dir)
	if err != nil {
		return "", fmt.Errorf("the chart's package: %w", err)
	}
	return file, nil
}
