#!/usr/bin/env bash
# The same on a GKE cluster, through XPK (pip install xpk).
#
#   gke.sh cluster --cluster c --zone us-east5-a --type v5p-64 --slices 2 --spot
#   gke.sh run     --cluster c --zone us-east5-a --type v5p-64 --slices 2 --name gsm8k \
#                  --image REGION-docker.pkg.dev/PROJECT/REPOSITORY/rlhf_jax:TAG -- \
#                  python -m experiments.grpo_gsm8k --out /mnt/shared/gsm8k --seed 1
#   gke.sh status  --cluster c --zone us-east5-a [--name gsm8k]
#   gke.sh delete  --cluster c --zone us-east5-a --name gsm8k
#
# --restarts N   a run that was preempted or failed is started again this often (20)
#
# The image is built from tpu_scripts/Dockerfile. `delete` ends one workload by name; a cluster is
# deleted by hand: xpk cluster delete --cluster c --zone …
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=common.sh
. "$here/common.sh"

ACTION=${1:-} CLUSTER="" TYPE="" SLICES=1 IMAGE="" SPOT="" RESTARTS=20 NAME=""
case $ACTION in
  cluster | run | status | delete) shift ;;
  --help | -h) usage ;;
  *) die 2 "first word ${ACTION:-(missing)}: take cluster, run, status or delete" ;;
esac
split_options "$@"
set -- ${ARGS[@]+"${ARGS[@]}"}
while (($#)); do
  case $1 in
    --) shift && break ;;
    --spot) SPOT=--spot && shift && continue ;;
    --cluster | --type | --slices | --image | --restarts) need_value "$1" "$#" ;;
    *) common_option "$@" && shift "$USED" && continue ;;
  esac
  case $1 in
    --cluster) CLUSTER=$2 ;;
    --type) TYPE=$2 ;;
    --slices) SLICES=$2 ;;
    --image) IMAGE=$2 ;;
    --restarts) RESTARTS=$2 ;;
  esac
  shift 2
done
check_name --cluster "$CLUSTER"
[[ -n $ZONE ]] || die 2 "name the zone: --zone ZONE, or TPU_ZONE"
check_number --slices "$SLICES" 1
check_number --restarts "$RESTARTS" 0
need() { [[ -n $2 ]] || die 2 "$ACTION needs $1"; }

xpk_do() {
  local command=(xpk "$@" "--cluster=$CLUSTER" "--zone=$ZONE")
  [[ -z $PROJECT ]] || command+=("--project=$PROJECT")
  if [[ -n $DRY_RUN ]]; then show "${command[@]}"; else "${command[@]}"; fi
}

case $ACTION in
  cluster)
    need --type "$TYPE"
    xpk_do cluster create "--tpu-type=$TYPE" "--num-slices=$SLICES" ${SPOT:+"$SPOT"}
    ;;
  run)
    need --type "$TYPE"
    need --image "$IMAGE"
    check_name --name "$NAME"
    (($# > 0)) || die 2 "what is to run? give it after --"
    # A run that is asked to stop saves and ends with code 75: to XPK that is a failure of the
    # program, so those must be restarted too. The grace period is for the step and the save.
    xpk_do workload create "--workload=$NAME" "--tpu-type=$TYPE" "--num-slices=$SLICES" \
      "--docker-image=$IMAGE" --env=RLHF_JAX_DISTRIBUTED=auto "--max-restarts=$RESTARTS" \
      --restart-on-user-code-failure --termination-grace-period-seconds=300 "--command=$(show "$@")"
    ;;
  status) xpk_do workload list ${NAME:+"--filter-by-job=$NAME"} ;;
  delete)
    # without a name XPK deletes every workload of the cluster
    check_name --name "$NAME"
    xpk_do workload delete "--workload=$NAME"
    ;;
esac
