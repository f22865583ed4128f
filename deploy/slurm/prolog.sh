#!/usr/bin/env bash
# Prolog of Slurm (Prolog=, with PrologFlags=Alloc): a daemon of the job's own on this node, under the job's user. May be run
# again. A failure drains the node, as any prolog's does, and the reason is in slurmd's log.
set -euo pipefail
umask 022
# shellcheck source=places.sh
. "$(dirname "$(readlink -f "$0")")/places.sh"

! daemon >/dev/null || exit 0
mkdir -p "$scratch" "$run"

as_user=()
if [ "$(id -u)" = 0 ]; then
  as_user=(setpriv "--reuid=$SLURM_JOB_UID" "--regid=$SLURM_JOB_GID" --init-groups --no-new-privs)
  install -d -m 0700 -o "$SLURM_JOB_UID" -g "$SLURM_JOB_GID" "$cache" "$home"
else
  install -d -m 0700 "$cache" "$home"
fi

# No listener for scraping: jobs that share a node would share its port.
env -i PATH="$PATH" setsid "${as_user[@]}" "$program" serve --config "$config" --cache-dir "$cache" --socket "$socket" --http '' \
  </dev/null >>"$log" 2>&1 &
pid=$!
echo "$pid $(started "$pid")" >"$note"

# The socket appears when it is listened at. A large cache directory of a job that was requeued is read first.
for _ in $(seq 600); do
  [ ! -S "$socket" ] || exit 0
  daemon >/dev/null || break
  sleep 0.1
done
echo "cachedaemon of job $job did not start: $(tail -n 3 "$log")" >&2
exit 1
