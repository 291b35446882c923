#!/bin/sh
# Before the files are unpacked: one of them belongs to the group. The user stays when the package is removed, so that
# nobody else gets its number.
set -e
getent passwd unlocker >/dev/null || useradd --system --user-group --no-create-home --home-dir /nonexistent \
  --shell /usr/sbin/nologin --comment unlocker unlocker
