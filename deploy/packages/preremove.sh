#!/bin/sh
# Copyright The rdma-spec Authors.
# SPDX-License-Identifier: Apache-2.0

# Before the files go. deb: remove, or upgrade NEW VERSION; rpm: 0 on removal, 1 on upgrade. A deb that is installed again finds its units
# enabled as they were. It reports what systemd refuses, and ends well: a package that cannot be removed blocks the package manager.
units="nri-rdma.service nri-rdma-validator.service rdma-spec-repair.service rdma-spec-cdi.service rdma-spec-cdi.timer rdma-spec-doctor.timer"
try() {
  "$@" || echo "rdma-spec: \"$*\" failed. The package is removed all the same." >&2
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
  rm -f /var/lib/prometheus/node-exporter/rdma-spec.prom # node_exporter would serve what the doctor found last for good
  # It names a hook that goes now: no container with such a device would start.
  for file in /var/run/cdi/rdma.yaml /etc/cdi/rdma.yaml; do
    if grep -qs /usr/bin/rdma-hook $file; then
      rm -f $file
    fi
  done
  ;;
esac
exit 0
