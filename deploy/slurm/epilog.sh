#!/usr/bin/env bash
# Epilog of Slurm (Epilog=): ends what the prolog has started, and removes its cache. May be run again.
set -euo pipefail
# shellcheck source=places.sh
. "$(dirname "$(readlink -f "$0")")/places.sh"

if pid=$(daemon); then
  kill -TERM "$pid"
  # It ends within 8 s by itself, whatever hangs.
  for _ in $(seq 150); do
    daemon >/dev/null || break
    sleep 0.1
  done
  ! daemon >/dev/null || kill -KILL "$pid"
fi
rm -rf -- "$cache" "$home" "$note" "$log"
