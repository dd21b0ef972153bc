// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !node

package systemd_test

import (
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

func TestMain(m *testing.M) { repository.Main(m) }
