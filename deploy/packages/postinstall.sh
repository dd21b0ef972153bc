#!/bin/sh
# Copyright The rdma-spec Authors.
# SPDX-License-Identifier: Apache-2.0

# Runs after the files are installed. For a deb, the arguments are configure and the last configured version, even if that version has been
# removed. For an rpm, the argument is 1 on installation and 2 on upgrade. The script reports systemd's errors but still succeeds, because a
# half-configured package prevents apt from installing any other package.
units="nri-rdma.service nri-rdma-validator.service rdma-spec-repair.service"
try() {
  "$@" || echo "rdma-spec: \"$*\" failed. The package is installed; see: systemctl status $units" >&2
}
case "$1 $2" in
"configure " | "1 ") # the preset from the distribution or an administrator decides whether the service is enabled
  if [ "$(systemctl is-enabled nri-rdma.service 2>/dev/null)" != masked ]; then
    try systemctl preset nri-rdma.service
  fi
  if ! systemctl is-enabled --quiet nri-rdma.service 2>/dev/null; then
    echo "rdma-spec: nri-rdma.service is not enabled. To start it now and at each boot: systemctl enable --now nri-rdma.service" >&2
  fi
  ;;
esac
if [ -d /run/systemd/system ]; then
  try systemctl daemon-reload
  for unit in $units; do
    if [ "$1" = configure ]; then
      try deb-systemd-invoke restart $unit # a disabled unit that is not running stays stopped; policy-rc.d can forbid a restart
    elif systemctl is-enabled --quiet $unit 2>/dev/null; then
      try systemctl restart $unit
    else
      try systemctl try-restart $unit
    fi
  done
fi
exit 0
