# Where a job's daemon is. Read by the other scripts here, which lie beside this one; a place changes what it must.
job=${SLURM_JOB_ID:?is not set: this belongs into a prolog or epilog of Slurm}
# What is made of it is removed as root.
case $job in *[!0-9]*) echo "SLURM_JOB_ID: $job is no number" >&2; exit 1 ;; esac
program=${CACHEDAEMON_PROGRAM:-/opt/cachedaemon/bin/cachedaemon}
config=${CACHEDAEMON_CONFIG:-/etc/cachedaemon/cachedaemon.toml}
# Both folders belong to root, and only root writes into them; what is in them is the user's.
scratch=${CACHEDAEMON_SCRATCH:-/local/cachedaemon}
run=${CACHEDAEMON_RUN:-/run/cachedaemon-jobs}

cache=$scratch/job-$job
home=$run/$job
socket=$home/cachedaemon.sock
# Not in `home`: who wrote it decides which process root ends.
note=$run/$job.pid
log=$run/$job.log

# When a process was started, in ticks since boot (proc_pid_stat(5), field 22): its number alone may be another's by now.
started() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 20; }

# The job's daemon, if it lives.
daemon() {
  local pid= since=
  { read -r pid since <"$note"; } 2>/dev/null || return 1
  [ -n "$since" ] && [ "$(started "$pid")" = "$since" ] && echo "$pid"
}
