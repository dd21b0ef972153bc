#!/bin/sh
# Copyright The rdma-spec Authors.
# SPDX-License-Identifier: Apache-2.0

# Runs before the files are removed. For a deb, the arguments are remove, or upgrade followed by the new version. For an rpm, the argument
# is 0 on removal and 1 on upgrade. Removing a deb does not disable its units, so they are still enabled if the deb is
# reinstalled. The script reports errors from systemd, but still succeeds, because a package that cannot be removed blocks the package
# manager.
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
  # The CDI file names a hook that is removed with this package. Without the hook, containers with a device
  # from this file would not start.
  for file in /var/run/cdi/rdma.yaml /etc/cdi/rdma.yaml; do
    if grep -qs /usr/bin/rdma-hook $file; then
      rm -f $file
    fi
  done
  ;;
esac
exit 0
