#!/usr/bin/env bash
# search.sh MODEL FLAG…: visits all states of a model, with the flags of spin, and prints what pan does. It writes into the
# working directory, where a model may include files. OPT is how gcc optimizes: -O1 pays in a long search.
set -euo pipefail
model=$1 kind=(-DSAFETY -DNOREDUCE) search=()
[ "$(basename "$model")" != queue.pml ] || kind=(-DNFAIR=4) search=(-a -f)
spin "${@:2}" -a "$model" >spin.out || { cat spin.out; exit 1; }
gcc "${OPT:--O0}" -w -DMEMLIM=1900 -DVECTORSZ=2048 -DCOLLAPSE "${kind[@]}" -o pan pan.c
timeout 900 nice -n 10 ./pan -m1000000 -w22 "${search[@]}"
