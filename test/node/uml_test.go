// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package node

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// A kernel that lacks a requested option is not built: otherwise, a test that needs the option would fail without a
// clear reason.
func TestMissingOptions(t *testing.T) {
	config := filepath.Join(scratch.Dir(t), ".config")
	scratch.File(t, config, "CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=m\nCONFIG_DEF=y\n", 0o644)
	if err := missingOptions("# A comment.\nCONFIG_A=y\n\nCONFIG_C=m\n", config); err != nil {
		t.Error(err)
	}
	err := missingOptions("CONFIG_A=y\nCONFIG_B=y\nCONFIG_C=y\nCONFIG_D=y\n", config)
	if err == nil || !strings.Contains(err.Error(), "do not take CONFIG_B=y, CONFIG_C=y, CONFIG_D=y:") {
		t.Errorf("three options that are missing: %v", err)
	}
}
