#!/usr/bin/env bash
# Delete one pod, by its name: the request, its slices, and all that lies on their disks.
#
#   delete.sh pod --zone us-east5-a
#
# The name stands on the command line (TPU_NAME is not read) and is asked for once more.
# --yes   do not ask
#
# Buckets and file systems that were mounted stay.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=common.sh
. "$here/common.sh"

NAME="" YES=""
split_options "$@"
set -- ${ARGS[@]+"${ARGS[@]}"}
while (($#)); do
  case $1 in
    --yes) YES=1 && shift ;;
    -*) common_option "$@" && shift "$USED" ;;
    *)
      [[ -z $NAME ]] || die 2 "one pod at a time: $NAME or $1?"
      NAME=$1 && shift
      ;;
  esac
done
check_place

if [[ -n $DRY_RUN ]]; then
  tpus queued-resources describe "$NAME" '--format=value(state.state)'
  slices >/dev/null
  tpus queued-resources delete "$NAME" --force --quiet
  say "# a pod that was made with --direct has no request; its slices are deleted by name instead:"
  tpus tpu-vm delete "$NAME-0" --quiet
  exit 0
fi
state="" rows=$(slices)
if told=$(tpus queued-resources describe "$NAME" '--format=value(state.state)' 2>&1); then
  state=$told
elif [[ $told != *NOT_FOUND* ]]; then
  die 3 "$NAME cannot be looked up: $told"
fi
[[ -n $state || -n $rows ]] || die 3 "there is no pod $NAME in $ZONE"
say "to delete in $ZONE:"
[[ -z $state ]] || say "  request $NAME ($state)"
[[ -z $rows ]] || awk '{ print "  slice " $1 " (" $2 ", " $3 " workers)" }' <<<"$rows" >&2
if [[ -z $YES ]]; then
  printf 'type its name to delete it: ' >&2
  read -r answer || answer=""
  [[ $answer == "$NAME" ]] || die 2 "nothing was deleted"
fi
if [[ -n $state ]]; then
  tpus queued-resources delete "$NAME" --force --quiet || die 3 "$NAME was not deleted; look with tpu_scripts/status.sh"
else
  while read -r slice _; do
    tpus tpu-vm delete "$slice" --quiet || die 3 "$slice was not deleted; look with tpu_scripts/status.sh"
  done <<<"$rows"
fi
say "$NAME is deleted"
