#!/bin/sh
# Copyright The rdma-spec Authors.
# SPDX-License-Identifier: Apache-2.0

# After the files are there. deb: configure [VERSION THAT WAS CONFIGURED LAST, perhaps removed since]; rpm: 1 on installation, 2 on upgrade.
set -e
case "$1 $2" in
"configure " | "1 ") systemctl enable nri-rdma.service ;;
esac
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  for unit in nri-rdma.service nri-rdma-validator.service; do
    if systemctl is-enabled --quiet $unit; then
      systemctl restart $unit
    else
      systemctl try-restart $unit
    fi
  done
fi
