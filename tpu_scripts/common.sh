# shellcheck shell=bash disable=SC2034,SC2154 # read and set by the scripts that source it
# Sourced by the other scripts: options, dry run, and the workers of a pod. Runs on bash 3.2 too.
#
# A pod is named once: its queued resource is NAME and its slices are the TPU VMs NAME-0, NAME-1, …
# Exit codes: 2 a wrong option, 3 the pod is not there or not ready, 4 no quota or no capacity,
# 5 a worker did not do what it was asked.

NAME=${TPU_NAME:-} ZONE=${TPU_ZONE:-} PROJECT=${TPU_PROJECT:-} DRY_RUN="" REACH=()
AT_ONCE=16 # gcloud processes side by side: one a worker
SCRATCH=$(mktemp -d)
trap 'rm -rf "$SCRATCH"' EXIT

say() { printf '%s\n' "$*" >&2; }
die() {
  local code=$1
  shift
  say "error: $*"
  exit "$code"
}

usage() { # the comment at the head of the script
  awk 'NR > 1 && /^#/ { sub(/^# ?/, ""); print; next } NR > 1 { exit }' "$here/${0##*/}"
  printf '\nOf all scripts: --name NAME (TPU_NAME), --zone ZONE (TPU_ZONE), --project ID (TPU_PROJECT),\n'
  printf -- '--internal-ip: reach the workers by their internal addresses (from inside their network),\n'
  printf -- '--dry-run: print the commands and run none of them\n'
  exit 0
}

# --option=value becomes two words, up to the first bare --; the words are left in ARGS.
split_options() {
  ARGS=()
  while (($#)); do
    case $1 in
      --) ARGS+=("$@") && return ;;
      --*=*) ARGS+=("${1%%=*}" "${1#*=}") ;;
      *) ARGS+=("$1") ;;
    esac
    shift
  done
}

need_value() { # of the option $1; $2 is how many words are left, itself included
  (($2 > 1)) || die 2 "$1 needs a value"
}

# Options of every script. USED: how many words were taken.
common_option() {
  case $1 in
    --help | -h) usage ;;
    --dry-run) DRY_RUN=1 USED=1 && return ;;
    --internal-ip) REACH=(--internal-ip) USED=1 && return ;;
    --name | --zone | --project) need_value "$1" "$#" ;;
    *) die 2 "$1 is unknown; see $0 --help" ;;
  esac
  case $1 in
    --name) NAME=$2 ;;
    --zone) ZONE=$2 ;;
    --project) PROJECT=$2 ;;
  esac
  USED=2
}

check_number() { # option, value, least
  if ! [[ $2 =~ ^[0-9]{1,6}$ ]] || (($2 < $3)); then
    die 2 "$1 $2: take a whole number of at least $3"
  fi
}

check_name() { # option, value: what Google allows, and nothing that a filter or shell would read
  [[ $2 =~ ^[a-z]([-a-z0-9]{0,50}[a-z0-9])?$ ]] ||
    die 2 "$1 ${2:-(empty)}: take lower-case letters, digits and -, beginning with a letter"
}

check_place() {
  [[ -n $NAME ]] || die 2 "name the pod: --name NAME, or TPU_NAME"
  check_name --name "$NAME"
  [[ -n $ZONE ]] || die 2 "name the zone: --zone ZONE, or TPU_ZONE (gcloud compute tpus locations list)"
}

show() { # a command as it would be typed
  local word
  for word in "$@"; do printf '%q ' "$word"; done | sed 's/ $//'
  printf '\n'
}

# gcloud compute tpus …, or its line where this is a dry run; the place is added.
tpus() {
  local command=(gcloud compute tpus "$@" "--zone=$ZONE")
  [[ -z $PROJECT ]] || command+=("--project=$PROJECT")
  if [[ -n $DRY_RUN ]]; then show "${command[@]}" >&3; else "${command[@]}"; fi
}
exec 3>&1 # where a dry run prints, also from within $(…)

# One line a slice: name, state, number of workers.
slices() {
  if [[ -n $DRY_RUN ]]; then
    list_slices
    printf '%s READY 1\n' "$NAME-0"
    return
  fi
  list_slices | sort -V
}

list_slices() {
  tpus tpu-vm list "--filter=name ~ \"/$NAME-[0-9]+\$\"" \
    '--format=value(name.basename(),state,networkEndpoints.len())'
}

# Leaves "slice worker" lines in WORKERS; dies unless every slice is READY.
find_workers() {
  local rows slice state count w
  rows=$(slices) || die 3 "the slices of $NAME cannot be listed"
  [[ -n $rows ]] || die 3 "there is no slice $NAME-0 in $ZONE; make it with create.sh, see it with status.sh"
  WORKERS=""
  while read -r slice state count; do
    [[ $state == READY ]] ||
      die 3 "slice $slice is $state, not READY; see it with status.sh, delete it by name with delete.sh"
    [[ $count =~ ^[1-9][0-9]*$ ]] || die 3 "slice $slice names no workers"
    for ((w = 0; w < count; w++)); do WORKERS+="$slice $w"$'\n'; done
  done <<<"$rows"
  [[ -z $DRY_RUN ]] || say "# how many workers there are is not known in a dry run: shown for one"
}

num_workers() { printf '%s' "$WORKERS" | grep -c .; }

# Call `$1 slice worker …` for every worker, AT_ONCE side by side. What each printed is in
# REPLIES/slice.worker; dies naming those that failed. (gcloud's own --worker=all skips what it
# cannot reach with a warning, and tells nobody which output was whose.)
on_workers() {
  local what=$1 slice worker running=0 failed=""
  shift
  REPLIES=$(mktemp -d "$SCRATCH/replies.XXXXXX")
  while read -r slice worker; do
    [[ -n $slice ]] || continue
    (
      code=0
      "$@" "$slice" "$worker" >"$REPLIES/$slice.$worker" 2>"$REPLIES/$slice.$worker.err" </dev/null || code=$?
      printf '%s' "$code" >"$REPLIES/$slice.$worker.code"
    ) &
    running=$((running + 1))
    if ((running % AT_ONCE == 0)); then wait; fi
  done <<<"$WORKERS"
  wait
  while read -r slice worker; do
    [[ -n $slice ]] || continue
    [[ $(cat "$REPLIES/$slice.$worker.code") == 0 ]] && continue
    failed+=" $slice:$worker"
    say "worker $slice:$worker failed to $what:"
    tail -n 5 "$REPLIES/$slice.$worker" "$REPLIES/$slice.$worker.err" 2>/dev/null | sed 's/^/    /' >&2
  done <<<"$WORKERS"
  [[ -z $failed ]] || return 5
}

ssh_worker() { # command, slice, worker
  tpus tpu-vm ssh "$2" "--worker=$3" ${REACH[@]+"${REACH[@]}"} \
    '--ssh-flag=-o ConnectTimeout=15' "--command=$1"
}

scp_worker() { # file, where to, slice, worker
  tpus tpu-vm scp "$1" "$3:$2" "--worker=$4" ${REACH[@]+"${REACH[@]}"}
}

replies() { # what the workers said, each line after its worker
  local slice worker
  while read -r slice worker; do
    [[ -n $slice ]] || continue
    sed "s/^/$slice:$worker  /" "$REPLIES/$slice.$worker"
  done <<<"$WORKERS"
}
