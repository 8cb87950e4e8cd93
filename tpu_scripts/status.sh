#!/usr/bin/env bash
# What the request, its slices and their workers are doing.
#
#   status.sh --name pod --zone us-east5-a
#
# --lines N   last lines of each job's log (1)
#
# Ends with 0 if every worker answered, 5 if one did not, 3 if the pod is not there or not ready.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=common.sh
. "$here/common.sh"

LINES_SHOWN=1
split_options "$@"
set -- ${ARGS[@]+"${ARGS[@]}"}
while (($#)); do
  case $1 in
    --lines) need_value "$1" "$#" && LINES_SHOWN=$2 && shift 2 ;;
    *) common_option "$@" && shift "$USED" ;;
  esac
done
check_place
check_number --lines "$LINES_SHOWN" 0

if [[ -n $DRY_RUN ]]; then
  tpus queued-resources describe "$NAME" '--format=value(state.state)'
else
  state=$(tpus queued-resources describe "$NAME" '--format=value(state.state)' 2>/dev/null) || state="not a queued resource"
  printf 'request %s: %s\n' "$NAME" "$state"
  slices | awk '{ print "slice " $1 ": " $2 ", " $3 " workers" }'
fi
find_workers

look="set -eu
cd ~/rlhf_jax 2>/dev/null || { echo 'not set up'; exit 0; }
echo \"commit \$(basename \$(readlink current) | cut -c1-12)\"
for job in jobs/*/; do
  [ -e \$job/pid ] || continue
  name=\$(basename \$job)
  if kill -0 \$(cat \$job/pid) 2>/dev/null; then echo \"job \$name: running as process \$(cat \$job/pid)\"
  elif [ -s \$job/code ]; then echo \"job \$name: ended with code \$(cat \$job/code)\"
  else echo \"job \$name: killed\"; fi
  tail -n $LINES_SHOWN \$job/log | sed 's/^/  | /'
done"
if [[ -n $DRY_RUN ]]; then ssh_worker "$look" "$NAME-0" 0 && exit 0; fi
code=0
on_workers "answer" ssh_worker "$look" || code=$?
replies
exit "$code"
