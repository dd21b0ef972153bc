#!/bin/sh
# Copyright The rdma-spec Authors.
# SPDX-License-Identifier: Apache-2.0

# Runs before the files are removed. For a deb, the argument is remove, or upgrade and the new version. For an rpm, the argument is 0 on
# removal and 1 on upgrade. If a deb is reinstalled, its units are still enabled. The script reports errors from systemd, but succeeds,
# because a package that cannot be removed blocks the package manager.
units="nri-rdma.service nri-rdma-validator.service rdma-spec-repair.service rdma-spec-cdi.service rdma-spec-cdi.timer rdma-spec-doctor.timer"
try() {
  "$@" || echo "rdma-spec: \"$*\" failed. The package is removed anyway." >&2
}
case "$1" in
remove | 0)
  if [ "$1" = 0 ]; then
    try systemctl disable $units
  fi
  if [ -d /run/systemd/system ]; then
    if [ "$1" = remove ]; then
      try deb-systemd-invoke stop $units rdma-spec-doctor.service
    else
      try systemctl stop $units rdma-spec-doctor.service
    fi
  fi
  rm -f /var/lib/prometheus/node-exporter/rdma-spec.prom # otherwise, node_exporter would serve the doctor's last findings forever
  # The CDI file names a hook that this removal deletes. Containers with a device from this file would not start.
  for file in /var/run/cdi/rdma.yaml /etc/cdi/rdma.yaml; do
    if grep -qs /usr/bin/rdma-hook $file; then
      rm -f $file
    fi
  done
  ;;
esac
exit 0
