#!/bin/sh
# Copyright The rdma-spec Authors.
# SPDX-License-Identifier: Apache-2.0

# Before the files go. deb: remove, or upgrade NEW VERSION; rpm: 0 on removal, 1 on upgrade.
set -e
case "$1" in
remove | 0)
  systemctl disable nri-rdma.service nri-rdma-validator.service
  if [ -d /run/systemd/system ]; then
    systemctl stop nri-rdma.service nri-rdma-validator.service
  fi
  ;;
esac
