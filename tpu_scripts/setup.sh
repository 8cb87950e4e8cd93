#!/usr/bin/env bash
# Put the committed code on every worker and install it there.
#
#   setup.sh --name pod --zone us-east5-a
#
# --source FOLDER   the checkout whose HEAD is copied (the one this script lies in)
# --extras LIST     extras to install, comma-separated (tpu,rewards)
#
# On a worker: ~/rlhf_jax/code/COMMIT, ~/rlhf_jax/current -> it, ~/rlhf_jax/venv. Code of other
# commits, runs (~/rlhf_jax/work) and logs (~/rlhf_jax/jobs) stay. Needs Python 3.11 or later there;
# where it is missing, uv fetches one.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=common.sh
. "$here/common.sh"

SOURCE=$here/.. EXTRAS=tpu,rewards
split_options "$@"
set -- ${ARGS[@]+"${ARGS[@]}"}
while (($#)); do
  case $1 in
    --source | --extras) need_value "$1" "$#" ;;
    *) common_option "$@" && shift "$USED" && continue ;;
  esac
  case $1 in
    --source) SOURCE=$2 ;;
    --extras) EXTRAS=$2 ;;
  esac
  shift 2
done
check_place
[[ $EXTRAS =~ ^[a-z_,]+$ ]] || die 2 "--extras $EXTRAS: names with commas between them"
commit=$(git -C "$SOURCE" rev-parse HEAD 2>/dev/null) || die 2 "--source $SOURCE is no git checkout"
[[ -z $(git -C "$SOURCE" status --porcelain) ]] || say "note: what is not committed is not copied; the workers get $commit"

find_workers
bundle=$SCRATCH/rlhf_jax.tar.gz
git -C "$SOURCE" archive --format=tar.gz -o "$bundle" HEAD

unpack="set -euo pipefail
mkdir -p ~/rlhf_jax/code/$commit ~/rlhf_jax/work ~/rlhf_jax/jobs
tar xzf ~/rlhf_jax.tar.gz -C ~/rlhf_jax/code/$commit
ln -sfn ~/rlhf_jax/code/$commit ~/rlhf_jax/current
cd ~/rlhf_jax
python3 -m pip install --quiet --user uv 2>/dev/null || python3 -m pip install --quiet --user --break-system-packages uv
uv=\$(python3 -m site --user-base)/bin/uv
[ -x venv/bin/python ] || \$uv venv --quiet --python '>=3.11' venv
\$uv pip install --quiet --python venv/bin/python -e 'current[$EXTRAS]'
cd work && ../venv/bin/python -c 'import jax, rlhf_jax; print(\"jax\", jax.__version__, \"at commit ${commit:0:12}\")'"

if [[ -n $DRY_RUN ]]; then
  scp_worker "$bundle" rlhf_jax.tar.gz "$NAME-0" 0
  ssh_worker "$unpack" "$NAME-0" 0
  exit 0
fi
say "copying commit ${commit:0:12} to $(num_workers) workers"
on_workers "take the code" scp_worker "$bundle" rlhf_jax.tar.gz || die 5 "not every worker has the code; run this again"
say "installing"
on_workers "install" ssh_worker "$unpack" || die 5 "not every worker is set up; run this again"
replies
