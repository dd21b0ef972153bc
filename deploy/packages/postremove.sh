#!/bin/sh
# Copyright The rdma-spec Authors.
# SPDX-License-Identifier: Apache-2.0

# Runs after the files are removed. For a deb, the argument is remove or, in a later run, purge. For an rpm, the argument is 0 on removal
# and 1 on upgrade. The record that rdma-spec configure wrote stays in /var/lib/rdma-spec, because rdma-spec configure --revert needs
# it. If a command in this script fails, the removal still succeeds.
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload || echo 'rdma-spec: "systemctl daemon-reload" failed. The package is removed anyway.' >&2
fi
# Removes the files that the service has written. A DaemonSet's pods share this directory through mounts, and would not see a recreated
# directory.
forget() {
  if [ ! -e /run/rdma-spec/handover ]; then
    rm -f /run/rdma-spec/policy.yaml /run/rdma-spec/.policy.yaml*
    rmdir /run/rdma-spec 2>/dev/null || true # other programs might still use the directory
  fi
}
case "$1" in
purge)
  rm -rf /etc/rdma-spec
  forget
  for unit in nri-rdma.service nri-rdma-validator.service rdma-spec-repair.service rdma-spec-cdi.service rdma-spec-cdi.timer rdma-spec-doctor.timer; do
    rm -f /etc/systemd/system/*.wants/$unit # the link of an enabled unit
  done
  ;;
0) forget ;;
esac
exit 0
