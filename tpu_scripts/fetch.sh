#!/usr/bin/env bash
# Bring a run folder and the logs of all workers back.
#
#   fetch.sh --name pod --zone us-east5-a --run /mnt/shared/gsm8k --job gsm8k --to fetched
#
# --run FOLDER        on the first worker, absolute or inside ~/rlhf_jax/work; its checkpoints stay
# --with-checkpoints  bring them too
# --job JOB           whose logs to bring, one file a worker (run)
# --to FOLDER         here: FOLDER/<name of the run>, FOLDER/logs/JOB/ (fetched)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=common.sh
. "$here/common.sh"

RUN="" JOB=run TO=fetched LEFT_OUT="--exclude=checkpoints"
split_options "$@"
set -- ${ARGS[@]+"${ARGS[@]}"}
while (($#)); do
  case $1 in
    --with-checkpoints) LEFT_OUT="" && shift && continue ;;
    --run | --job | --to) need_value "$1" "$#" ;;
    *) common_option "$@" && shift "$USED" && continue ;;
  esac
  case $1 in
    --run) RUN=$2 ;;
    --job) JOB=$2 ;;
    --to) TO=$2 ;;
  esac
  shift 2
done
check_place
check_name --job "$JOB"
[[ -n $RUN ]] || die 2 "which run? --run FOLDER, as its --out was"

find_workers
# tar goes through ssh's output: scp cannot leave out checkpoints, which may be terabytes
parent=$(dirname "$RUN") base=$(basename "$RUN")
pack="cd ~/rlhf_jax/work && tar cz $LEFT_OUT -C $(show "$parent") -- $(show "$base")"
read_log="cat ~/rlhf_jax/jobs/$JOB/log"
if [[ -n $DRY_RUN ]]; then
  ssh_worker "$pack" "$NAME-0" 0
  ssh_worker "$read_log" "$NAME-0" 0
  exit 0
fi
mkdir -p "$TO/logs/$JOB"
ssh_worker "$pack" "$NAME-0" 0 | tar xz -C "$TO" || die 5 "the run $RUN was not fetched from $NAME-0:0"
code=0
on_workers "send its log" ssh_worker "$read_log" || code=$?
while read -r slice worker; do
  [[ -n $slice ]] || continue
  [[ $(cat "$REPLIES/$slice.$worker.code") != 0 ]] || cp "$REPLIES/$slice.$worker" "$TO/logs/$JOB/$slice.$worker.log"
done <<<"$WORKERS"
say "fetched to $TO: $base, logs/$JOB"
exit "$code"
