// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package chart creates the Helm chart's package. The package's tests render the chart with Helm's own library. From
// the chart, the tests generate the plain manifests in deploy, the schema of the chart's values, and the table in the
// chart's README.md.
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

// Dir is the chart's directory in the repository.
const Dir = "deploy/helm/nri-rdma"

// Load reads the chart from the repository in the directory root.
func Load(root string) (*chart.Chart, error) { return loader.LoadDir(filepath.Join(root, Dir)) }

// Package writes an archive of the chart with the given version to a directory, and returns the archive's path. All
// files in the archive have the same modification time.
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
		return "", fmt.Errorf("write the chart's package: %w", err)
	}
	return file, nil
}
