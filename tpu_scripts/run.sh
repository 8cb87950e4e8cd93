#!/usr/bin/env bash
# Start the same command on every worker of a pod, detached; or stop it.
#
#   run.sh --name pod --zone us-east5-a --job gsm8k -- \
#     python -m experiments.grpo_gsm8k --out /mnt/shared/gsm8k --seed 1
#   run.sh --name pod --zone us-east5-a --job gsm8k --stop
#
# --job JOB         names the run's log and process on the workers (run)
# --env KEY=VALUE   set for the command; may be given several times
# --follow          stay, and show the log of the first worker
# --stop            ask the job to save and end (SIGTERM), instead of starting it
#
# Nothing is started unless every worker answers, has the same commit and runs no job of that name.
# On a worker the command runs in ~/rlhf_jax/work and writes ~/rlhf_jax/jobs/JOB/log; the same
# command, started again, resumes. On several workers --out must be a folder that all of them see.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=common.sh
. "$here/common.sh"

JOB=run ENVIRONMENT=() FOLLOW="" STOP=""
split_options "$@"
set -- ${ARGS[@]+"${ARGS[@]}"}
while (($#)); do
  case $1 in
    --) shift && break ;;
    --follow) FOLLOW=1 && shift && continue ;;
    --stop) STOP=1 && shift && continue ;;
    --job | --env) need_value "$1" "$#" ;;
    *) common_option "$@" && shift "$USED" && continue ;;
  esac
  case $1 in
    --job) JOB=$2 ;;
    --env)
      [[ $2 =~ ^[A-Za-z_][A-Za-z0-9_]*= ]] || die 2 "--env $2: write KEY=VALUE"
      ENVIRONMENT+=("$2")
      ;;
  esac
  shift 2
done
check_place
check_name --job "$JOB"
[[ -n $STOP || $# -gt 0 ]] || die 2 "what is to run? give it after --"

find_workers
# the workers expand the tilde, not this shell
# shellcheck disable=SC2088
folder="~/rlhf_jax/jobs/$JOB"
alive="[ -s $folder/pid ] && kill -0 \$(cat $folder/pid) 2>/dev/null"

if [[ -n $STOP ]]; then
  stop="if $alive; then kill -TERM \$(cat $folder/pid) && echo asked to stop; else echo is not running; fi"
  if [[ -n $DRY_RUN ]]; then ssh_worker "$stop" "$NAME-0" 0 && exit 0; fi
  on_workers "stop" ssh_worker "$stop" || die 5 "not every worker was asked"
  replies
  exit 0
fi

typed=$(show "$@")
variables=$(show RLHF_JAX_DISTRIBUTED=auto "RLHF_JAX_NUM_PROCESSES=$(num_workers)" ${ENVIRONMENT[@]+"${ENVIRONMENT[@]}"})
ready="set -eu
[ -x ~/rlhf_jax/venv/bin/python ] || { echo 'not set up: run setup.sh first' >&2; exit 1; }
if $alive; then echo 'job $JOB is running here: stop it with --stop, or name another --job' >&2; exit 1; fi
basename \$(readlink ~/rlhf_jax/current)"
# The shell that waits for the command keeps its exit code; a signal goes to the command itself.
start="set -eu
mkdir -p $folder && cd ~/rlhf_jax/work && rm -f $folder/code
cat >$folder/command <<'COMMAND'
export PATH=~/rlhf_jax/venv/bin:\$PATH
exec env $variables $typed
COMMAND
nohup setsid bash -c 'bash $folder/command & echo \$! >$folder/pid; wait \$!; echo \$? >$folder/code' >>$folder/log 2>&1 </dev/null &
for i in 1 2 3 4 5 6 7 8 9 10; do [ -s $folder/pid ] && break; sleep 0.2; done
echo started as process \$(cat $folder/pid)"
follow="tail -n 20 -F $folder/log"

if [[ -n $DRY_RUN ]]; then
  ssh_worker "$ready" "$NAME-0" 0
  ssh_worker "$start" "$NAME-0" 0
  [[ -z $FOLLOW ]] || ssh_worker "$follow" "$NAME-0" 0
  exit 0
fi
on_workers "be ready" ssh_worker "$ready" || die 5 "nothing was started"
commits=$(replies | awk '{ print $2 }' | sort -u)
if [[ $commits == *$'\n'* ]]; then
  replies >&2
  die 5 "the workers have different code: run setup.sh again; nothing was started"
fi
if ! on_workers "start" ssh_worker "$start"; then
  say "asking the workers that did start to stop"
  on_workers "stop" ssh_worker "if $alive; then kill -TERM \$(cat $folder/pid); fi" || true
  die 5 "job $JOB was not started everywhere"
fi
replies
say "$(num_workers) workers at commit ${commits:0:12}; look with tpu_scripts/status.sh, stop with tpu_scripts/run.sh --stop, fetch with tpu_scripts/fetch.sh"
[[ -z $FOLLOW ]] || ssh_worker "$follow" "$NAME-0" 0
