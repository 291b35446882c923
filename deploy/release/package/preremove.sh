#!/bin/sh
# On removal, not on an upgrade: dpkg says "remove", rpm how many versions remain.
set -e
case $1 in remove | 0) ;; *) exit 0 ;; esac
[ ! -d /run/systemd/system ] || systemctl disable --now unlocker
