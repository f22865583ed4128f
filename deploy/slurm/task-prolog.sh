#!/usr/bin/env bash
# TaskProlog of Slurm: what it prints as "export" is in the environment of each task.
set -euo pipefail
# shellcheck source=places.sh
. "$(dirname "$(readlink -f "$0")")/places.sh"
echo "export CACHEDAEMON_SOCKET=$socket"
