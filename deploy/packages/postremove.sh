#!/bin/sh
# Copyright The rdma-spec Authors.
# SPDX-License-Identifier: Apache-2.0

# After the files have gone. deb: remove, then purge; rpm: 0 on removal, 1 on upgrade. The record of rdma-spec configure stays, in
# /var/lib/rdma-spec: without it nobody can put back what was changed.
set -e
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
case "$1" in
purge)
  rm -rf /etc/rdma-spec /run/rdma-spec
  for unit in nri-rdma.service nri-rdma-validator.service rdma-spec-cdi.service rdma-spec-cdi.timer rdma-spec-doctor.timer; do
    rm -f /etc/systemd/system/*.wants/$unit # it was enabled
  done
  ;;
0) rm -rf /run/rdma-spec ;;
esac
