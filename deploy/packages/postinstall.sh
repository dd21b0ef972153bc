#!/bin/sh
# Copyright The rdma-spec Authors.
# SPDX-License-Identifier: Apache-2.0

# After the files are there. deb: configure [VERSION THAT WAS CONFIGURED LAST, perhaps removed since]; rpm: 1 on installation, 2 on upgrade.
set -e
units="nri-rdma.service nri-rdma-validator.service"
case "$1 $2" in
"configure ") systemctl preset nri-rdma.service ;; # enabled, if no administrator's preset says otherwise
"1 ") systemctl enable nri-rdma.service ;;         # distributions with rpm preset nothing but their own
esac
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  if [ "$1" = configure ]; then
    deb-systemd-invoke restart $units # what is disabled and does not run stays so; policy-rc.d may forbid it
  else
    for unit in $units; do
      if systemctl is-enabled --quiet $unit; then
        systemctl restart $unit
      else
        systemctl try-restart $unit
      fi
    done
  fi
fi
