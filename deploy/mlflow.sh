#!/usr/bin/env bash
# MLflow on this machine's loopback, once, however often this is called: `ray up` calls it at every update.
#
#   mlflow.sh --port 5000 --data DIR --backup DIR
#
# The database (SQLite) lies in --data, on a disk of this machine; a copy of it is made in --backup every ten minutes
# (MLFLOW_BACKUP_SECONDS) and taken from there on a new machine. Artifacts lie in --backup themselves. What the tracking
# server lost is not lost: `rcray sync` delivers it again from the store. `kill -- -$(cat DIR/pid)` ends it all.
set -euo pipefail

while [ $# -gt 0 ]; do
  case $1 in
    --port) port=$2 ;;
    --data) data=$2 ;;
    --backup) backup=$2 ;;
    *) echo "mlflow.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done
: "${port:?}" "${data:?}" "${backup:?}"

answers() {
  python - "$port" <<'PYTHON'
import sys, urllib.request
try:
    urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/health", timeout=5)
except OSError:
    sys.exit(1)
PYTHON
}

# One copy in SQLite's own way: a server may be writing meanwhile.
copy_database() {
  python - "$1" "$2" <<'PYTHON'
import os, sqlite3, sys
source, target = sys.argv[1:]
with sqlite3.connect(source) as old, sqlite3.connect(target + ".new") as new:
    old.backup(new)
os.replace(target + ".new", target)
PYTHON
}

serve() {
  export MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false MLFLOW_DISABLE_TELEMETRY=true  # no job runners: tracking has no use for them
  while true; do
    mlflow server --host 127.0.0.1 --port "$port" --workers 1 \
      --backend-store-uri "sqlite:///$data/mlflow.db" --artifacts-destination "$backup/artifacts" || true
    sleep 5
  done
}

keep_backups() {
  while sleep "${MLFLOW_BACKUP_SECONDS:-600}"; do
    if [ -s "$data/mlflow.db" ]; then copy_database "$data/mlflow.db" "$backup/mlflow.db" || true; fi
  done
}

if answers; then exit 0; fi
mkdir -p "$data" "$backup"
# The lock is held by whoever serves, for as long as it does: a second call while the first one's server starts gives up.
exec 9> "$data/lock"
if ! flock -n 9; then exit 0; fi
if [ ! -e "$data/mlflow.db" ] && [ -e "$backup/mlflow.db" ]; then cp "$backup/mlflow.db" "$data/mlflow.db"; fi
export -f serve keep_backups copy_database
export port data backup
rm -f "$data/pid"
nohup setsid bash -c 'echo $$ > "$data/pid"; keep_backups & serve' > "$data/log" 2>&1 < /dev/null &
for _ in {1..100}; do if [ -s "$data/pid" ]; then exit 0; fi; sleep 0.1; done  # so that who called this can end it
echo "mlflow.sh: did not start; see $data/log" >&2
exit 1
