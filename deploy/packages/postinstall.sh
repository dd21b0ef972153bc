#!/bin/sh
# Copyright The rdma-spec Authors.
# SPDX-License-Identifier: Apache-2.0

# After the files are there. deb: configure [OLD VERSION]; rpm: 1 on installation, 2 on upgrade.
set -e
case "$1 $2" in
"configure " | "1 ") first=yes ;;
*) first= ;;
esac
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
if [ "$first" ]; then
  systemctl enable nri-rdma.service
  if [ -d /run/systemd/system ]; then
    systemctl start nri-rdma.service
  fi
elif [ -d /run/systemd/system ]; then
  systemctl try-restart nri-rdma.service nri-rdma-validator.service
fi
