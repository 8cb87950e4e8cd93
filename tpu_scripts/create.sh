#!/usr/bin/env bash
# Ask for a TPU pod and wait until it is there.
#
#   create.sh --name pod --zone us-east5-a --type v5p-64
#   create.sh --name pod --zone europe-west4-b --type v6e-64 --slices 2 --spot
#
# --type TYPE         accelerator type: v5litepod-16, v5p-128, v6e-64, v4-32, …
# --slices N          this many slices of that type, joined over the network (1)
# --spot              cheaper, may be taken away at any time
# --reserved          from your reservation
# --direct            tpu-vm create instead of a queued resource: now or not at all, one slice
# --runtime VERSION   system image (by the type: v2-alpha-tpuv6e, -tpuv5, -tpuv5-lite, or
#                     tpu-ubuntu2204-base)
# --network, --subnetwork, --service-account   as gcloud takes them
# --internal-ips      no public addresses
# --valid-until TIME  the request leaves the queue after this long: 6h, 2d (never)
# --wait MINUTES      how long to wait here; 0: return at once (60)
#
# A pod that is there already is left as it is; one that failed is named and never deleted here.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=common.sh
. "$here/common.sh"

TYPE="" SLICES=1 DIRECT="" RUNTIME="" WAIT=60 OPTIONS=()
split_options "$@"
set -- ${ARGS[@]+"${ARGS[@]}"}
while (($#)); do
  case $1 in
    --spot | --reserved | --internal-ips) OPTIONS+=("$1") && shift && continue ;;
    --direct) DIRECT=1 && shift && continue ;;
    --type | --slices | --runtime | --network | --subnetwork | --service-account | --valid-until | --wait)
      need_value "$1" "$#"
      ;;
    *) common_option "$@" && shift "$USED" && continue ;;
  esac
  case $1 in
    --type) TYPE=$2 ;;
    --slices) SLICES=$2 ;;
    --runtime) RUNTIME=$2 ;;
    --wait) WAIT=$2 ;;
    --valid-until) OPTIONS+=("--valid-until-duration=$2") ;;
    *) OPTIONS+=("$1=$2") ;;
  esac
  shift 2
done
check_place
[[ $TYPE =~ ^v[0-9][a-z]*-[0-9]+$ ]] || die 2 "--type ${TYPE:-(missing)}: take one of your zone: gcloud compute tpus accelerator-types list --zone=$ZONE"
check_number --slices "$SLICES" 1
check_number --wait "$WAIT" 0
if [[ -n $DIRECT ]]; then
  ((SLICES == 1)) || die 2 "--direct makes one slice; leave it away for --slices $SLICES"
  [[ " ${OPTIONS[*]-} " != *" --valid-until"* ]] || die 2 "--valid-until is of a queue, and --direct has none"
fi
if [[ -z $RUNTIME ]]; then
  case $TYPE in
    v6e-*) RUNTIME=v2-alpha-tpuv6e ;;
    v5p-*) RUNTIME=v2-alpha-tpuv5 ;;
    v5litepod-*) RUNTIME=v2-alpha-tpuv5-lite ;;
    *) RUNTIME=tpu-ubuntu2204-base ;;
  esac
fi

queue_state() { # empty: there is no such request
  local told
  if told=$(tpus queued-resources describe "$NAME" '--format=value(state.state)' 2>&1); then
    printf '%s' "$told"
  elif [[ $told != *NOT_FOUND* ]]; then
    die 3 "$NAME cannot be looked up: $told"
  fi
}

# Run a create command; what gcloud said is told, and quota and capacity have a code of their own.
create() {
  local told code=0
  if [[ -n $DRY_RUN ]]; then
    tpus "$@"
    return
  fi
  told=$(tpus "$@" 2>&1) || code=$?
  [[ -z $told ]] || say "$told"
  ((code == 0)) && return
  case $told in
    *[Qq]uota*) die 4 "no quota for $SLICES x $TYPE in $ZONE; ask for it, or take another type, zone or --spot" ;;
    *RESOURCE_EXHAUSTED* | *"no more capacity"*) die 4 "no capacity for $TYPE in $ZONE now; without --direct the request waits in the queue" ;;
  esac
  die 3 "$NAME was not made (gcloud ended with $code)"
}

check_slices() {
  local rows slice state count made=0
  rows=$(slices)
  while read -r slice state count; do
    [[ -n $slice ]] || continue
    [[ $state == READY ]] || die 3 "slice $slice is $state: taken away while it was made? tpu_scripts/delete.sh $NAME --zone $ZONE, then create it again"
    made=$((made + 1))
    say "$slice: $state, $count workers"
  done <<<"$rows"
  ((made == SLICES)) || [[ -n $DRY_RUN ]] || die 3 "$made slices named $NAME-N are there, not $SLICES"
}

wait_for_queue() {
  local state last="" waited=0 pause=${TPU_POLL_SECONDS:-20}
  while true; do
    state=$(queue_state)
    [[ $state == "$last" ]] || say "$NAME: ${state:-gone}"
    last=$state
    case $state in
      ACTIVE) return ;;
      FAILED) die 3 "the request failed: $(tpus queued-resources describe "$NAME" '--format=value(state.failedData.error.message)' 2>/dev/null || true); tpu_scripts/delete.sh $NAME --zone $ZONE, then create it again" ;;
      SUSPENDING | SUSPENDED) die 3 "the pod was taken away while it was made (spot?); tpu_scripts/delete.sh $NAME --zone $ZONE, then create it again" ;;
      "" | DELETING) die 3 "the request is gone: someone deleted it" ;;
    esac
    if ((waited >= WAIT * 60)); then
      say "still $state after $WAIT minutes; it goes on waiting: look with tpu_scripts/status.sh --name $NAME --zone $ZONE"
      exit 3
    fi
    sleep "$pause"
    waited=$((waited + (pause > 0 ? pause : 1)))
  done
}

OPTIONS+=("--accelerator-type=$TYPE")
if [[ -n $DIRECT ]]; then
  rows=$(slices)
  if [[ -n $rows && -z $DRY_RUN ]]; then say "$NAME is there already"; else
    create tpu-vm create "$NAME-0" "--version=$RUNTIME" "${OPTIONS[@]}"
  fi
  check_slices
  exit 0
fi

state=$(queue_state)
if [[ -n $state ]]; then
  say "$NAME is there already: $state"
else
  if ((SLICES == 1)); then
    OPTIONS+=("--node-id=$NAME-0")
  else
    OPTIONS+=("--node-count=$SLICES" "--node-prefix=$NAME")
  fi
  create queued-resources create "$NAME" "--runtime-version=$RUNTIME" "${OPTIONS[@]}"
fi
[[ -z $DRY_RUN ]] || exit 0
((WAIT == 0)) && exit 0
wait_for_queue
check_slices
