#!/bin/sh
# A daemon that runs is restarted, by an upgrade. The package starts none: what it would remove is for the operator to
# configure first. A restart that fails does not leave the package half installed; systemctl says what failed.
set -e
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
systemctl try-restart unlocker || :
