#!/bin/sh
# Copyright The rdma-spec Authors.
# SPDX-License-Identifier: Apache-2.0

# After the files have gone. deb: remove, then purge; rpm: 0 on removal, 1 on upgrade. The record of rdma-spec configure stays, in
# /var/lib/rdma-spec: it is what rdma-spec configure --revert needs. Nothing here makes the removal fail.
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload || echo 'rdma-spec: "systemctl daemon-reload" failed. The package is removed all the same.' >&2
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
exit 0
