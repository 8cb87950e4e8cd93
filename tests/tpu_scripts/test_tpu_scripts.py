"""What all scripts of tpu_scripts/ have in common, and how pods are made and deleted."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pod_cloud import ALL, EXTRA, PLACE, SCRIPTS, executable, flags_of

# ---- all scripts


def test_shellcheck_finds_nothing():
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    shellcheck = shutil.which("shellcheck", path=beside)
    if shellcheck is None:
        pytest.skip("shellcheck is not installed: pip install 'rlhf_jax[test]'")
    files = sorted(map(str, SCRIPTS.glob("*.sh")))
    found = subprocess.run(
        [shellcheck, "-x", "-P", "SCRIPTDIR", *files], capture_output=True, text=True
    )
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize("script", [*ALL, "gke"])
def test_strict_shell_and_help(cloud, script):
    text = (SCRIPTS / f"{script}.sh").read_text()
    assert "\nset -euo pipefail\n" in text
    told = cloud.run(script, "--help", place=())
    assert told.returncode == 0 and f"{script}.sh " in told.stdout and "--dry-run" in told.stdout
    for option in set(re.findall(r"^# (--[a-z-]+)", text, re.M)):
        assert re.search(rf"^ .*{option}\b.*[|)]", text, re.M), f"{option} is told and not read"
    assert not cloud.calls()


def test_no_credentials_are_read_or_printed():
    text = "".join(file.read_text() for file in SCRIPTS.glob("*.sh"))
    forbidden = r"gcloud auth|access.token|credential|application.default|\.config/gcloud|id_rsa"
    assert not re.search(forbidden, text, re.I)


@pytest.mark.parametrize("script", ALL)
def test_a_dry_run_prints_every_command_and_runs_none(cloud, script):
    place = PLACE if script != "delete" else ("pod", "--zone", "us-east5-a")
    told = cloud.run(script, "--dry-run", "--project=p", *EXTRA.get(script, ()), place=place)
    assert told.returncode == 0, told.stderr
    assert told.stdout and not cloud.calls()
    cloud.now(only_listens=True)
    typed = subprocess.run(
        ["bash", "-eu", "-c", told.stdout],  # what was printed is what one would type
        env={"PATH": f"{cloud.folder / 'bin'}:/usr/bin:/bin", "FAKE_CLOUD": str(cloud.folder)},
        capture_output=True,
        text=True,
    )
    assert typed.returncode == 0, typed.stderr
    assert len(cloud.calls()) == told.stdout.count("gcloud compute tpus ") > 0
    for call in cloud.calls():
        assert flags_of(call)["--project"] == "p" and flags_of(call)["--zone"] == "us-east5-a"


@pytest.mark.parametrize(
    ("script", "options", "told"),
    [
        ("create", (), "--type (missing)"),
        ("create", ("--type", "v5p"), "--type v5p"),
        ("create", ("--type", "v5p-64", "--slices", "0"), "--slices 0"),
        ("create", ("--type", "v5p-64", "--slices=2", "--direct"), "one slice"),
        ("create", ("--type", "v5p-64", "--direct", "--valid-until", "6h"), "--valid-until"),
        ("create", ("--type",), "--type needs a value"),
        ("create", ("--typ", "v5p-64"), "--typ is unknown"),
        ("create", ("--type", "v5p-64", "--name", "Pod_1"), "--name Pod_1"),
        ("create", ("--type", "v5p-64", "--name", "a$(id)"), "--name"),
        ("run", (), "what is to run"),
        ("run", ("--job", "a b", "--", "true"), "--job a b"),
        ("run", ("--env", "KEY", "--", "true"), "KEY=VALUE"),
        ("setup", ("--source", "/"), "--source /"),
        ("setup", ("--extras", "a;b"), "--extras"),
        ("status", ("--lines", "x"), "--lines x"),
        ("fetch", (), "which run"),
        ("delete", ("--yes",), "--name pod"),
    ],
)
def test_a_wrong_option_is_named_before_anything_is_called(cloud, script, options, told):
    place = ("--zone", "z") if script == "delete" else PLACE
    said = cloud.run(script, *options, place=place)
    if script == "delete":
        told = "name the pod"
    assert said.returncode == 2 and told in said.stderr
    assert not cloud.calls()


# ---- create


def test_a_queued_pod_is_asked_for_and_waited_for(cloud):
    cloud.now(states=["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"], workers=16)
    options = ("--type=v6e-64", "--slices", "2", "--spot", "--valid-until", "6h", "--network=n")
    told = cloud.run("create", *options)
    assert told.returncode == 0, told.stderr
    (call,) = cloud.calls("queued-resources create")
    assert call[4] == "pod"
    assert flags_of(call) == {
        "--zone": "us-east5-a",
        "--runtime-version": "v2-alpha-tpuv6e",
        "--accelerator-type": "v6e-64",
        "--node-count": "2",
        "--node-prefix": "pod",
        "--spot": True,
        "--valid-until-duration": "6h",
        "--network": "n",
    }
    seen = [told.stderr.index(s) for s in ("WAITING", "PROVISIONING", "ACTIVE", "pod-0: READY, 16")]
    assert seen == sorted(seen) and "pod-1: READY" in told.stderr


@pytest.mark.parametrize(
    ("type", "runtime"),
    [
        ("v5p-8", "v2-alpha-tpuv5"),
        ("v5litepod-16", "v2-alpha-tpuv5-lite"),
        ("v4-32", "tpu-ubuntu2204-base"),
    ],
)
def test_the_image_follows_from_the_type(cloud, type, runtime):
    cloud.now()
    assert cloud.run("create", "--type", type).returncode == 0
    flags = flags_of(cloud.calls("queued-resources create")[0])
    assert flags["--runtime-version"] == runtime and flags["--node-id"] == "pod-0"


def test_one_slice_without_a_queue(cloud):
    cloud.now()
    assert cloud.run("create", "--type=v5p-8", "--direct", "--reserved").returncode == 0
    (call,) = cloud.calls("tpu-vm create")
    assert call[4] == "pod-0" and flags_of(call)["--version"] == "v2-alpha-tpuv5"
    assert "there already" in cloud.run("create", "--type=v5p-8", "--direct").stderr
    assert len(cloud.calls("tpu-vm create")) == 1


@pytest.mark.parametrize("direct", [(), ("--direct",)])
@pytest.mark.parametrize(("refusal", "told"), [("quota", "no quota"), ("stockout", "no capacity")])
def test_no_quota_and_no_capacity_have_a_code_of_their_own(cloud, direct, refusal, told):
    cloud.now(refusal=refusal)
    said = cloud.run("create", "--type", "v5litepod-16", *direct)
    assert said.returncode == 4
    assert told in said.stderr and "RESOURCE_EXHAUSTED" in said.stderr  # gcloud's own words too


@pytest.mark.parametrize(
    ("scenario", "told"),
    [
        (dict(states=["PROVISIONING", "SUSPENDED"]), "taken away while it was made"),
        (dict(states=["PROVISIONING", "FAILED"]), "the allocation interval has passed"),
        (dict(states=["DELETING"]), "someone deleted it"),
        (dict(will_be=["READY", "PREEMPTED"]), "pod-1 is PREEMPTED"),
        (dict(will_be=["READY"]), "1 slices"),
    ],
)
def test_a_pod_lost_while_it_is_made_is_told_and_not_deleted(cloud, scenario, told):
    cloud.now(**scenario)
    said = cloud.run("create", "--type", "v6e-8", "--slices", "2")
    assert said.returncode == 3 and told in said.stderr
    assert not cloud.calls("queued-resources delete", "tpu-vm delete")


def test_waiting_has_an_end_and_the_request_stays(cloud):
    cloud.now(states=["WAITING_FOR_RESOURCES"])
    executable(cloud.folder / "bin/sleep", "#!/bin/sh\n")
    said = cloud.run("create", "--type", "v6e-8", "--wait", "1", TPU_POLL_SECONDS="20")
    assert said.returncode == 3 and "still WAITING_FOR_RESOURCES after 1 minutes" in said.stderr
    assert cloud.run("create", "--type", "v6e-8", "--wait", "0").returncode == 0
    assert len(cloud.calls("queued-resources create")) == 1  # found, not asked for again
    assert len(cloud.calls("queued-resources describe")) == 1 + 4 + 1


# ---- delete

ZONE = ("--zone", "us-east5-a")


def test_a_pod_is_deleted_by_the_name_on_the_command_line_alone(cloud):
    said = cloud.run("delete", *ZONE, place=(), TPU_NAME="pod")
    assert said.returncode == 2 and "name the pod" in said.stderr
    for answer in ("", "y\n", "pod-0\n"):
        said = cloud.run("delete", "pod", *ZONE, place=(), input=answer)
        assert said.returncode == 2 and "nothing was deleted" in said.stderr
    assert "slice pod-1 (READY, 2 workers)" in said.stderr
    assert not cloud.calls("queued-resources delete", "tpu-vm delete")
    assert cloud.run("delete", "pod", *ZONE, place=(), input="pod\n").returncode == 0
    assert [call[4] for call in cloud.calls("queued-resources delete")] == ["pod"]
    said = cloud.run("delete", "pod", "--yes", *ZONE, place=())
    assert said.returncode == 3 and "there is no pod" in said.stderr


def test_only_the_slices_of_that_name_are_deleted(cloud):
    others = {"pod-a-0": ["READY", 1], "mypod-0": ["READY", 1]}
    cloud.now(slices={"pod-0": ["PREEMPTED", 1], **others})
    assert cloud.run("delete", "pod", "--yes", *ZONE, place=()).returncode == 0
    assert [call[4] for call in cloud.calls("tpu-vm delete")] == ["pod-0"]
    scenario = json.loads((cloud.folder / "scenario.json").read_text())
    assert scenario["slices"] == others


# ---- GKE


def xpk(cloud, *words):
    told = cloud.run("gke", *words, place=())
    file = cloud.folder / "xpk"
    return told, file.read_text() if file.exists() else ""


def test_the_same_command_as_an_xpk_workload(cloud):
    words = ("run", "--cluster=c", *ZONE, "--type", "v5p-64", "--slices", "2", "--name", "j")
    words += ("--image", "i", "--project", "p")
    dry, line = xpk(cloud, *words, "--dry-run", "--", "python", "-m", "x", "--out", "a b")
    assert dry.returncode == 0 and not line
    assert shlex.split(dry.stdout)[0] == "xpk"
    told, line = xpk(cloud, *words, "--", "python", "-m", "x", "--out", "a b")
    assert told.returncode == 0, told.stderr
    assert line.strip() == " ".join(shlex.split(dry.stdout)[1:])
    for flag in ("--workload=j", "--tpu-type=v5p-64", "--num-slices=2", "--docker-image=i"):
        assert flag in line
    assert "--command=python -m x --out a\\ b" in line and "--restart-on-user-code-failure" in line


def test_a_cluster_is_made_and_looked_at_and_workloads_end_by_name(cloud):
    assert (
        xpk(cloud, "cluster", "--cluster", "c", *ZONE, "--type=v6e-8", "--spot")[0].returncode == 0
    )
    assert xpk(cloud, "status", "--cluster", "c", *ZONE)[0].returncode == 0
    told, lines = xpk(cloud, "delete", "--cluster", "c", *ZONE, "--name", "j")
    assert told.returncode == 0
    assert lines.splitlines() == [
        "cluster create --tpu-type=v6e-8 --num-slices=1 --spot --cluster=c --zone=us-east5-a",
        "workload list --cluster=c --zone=us-east5-a",
        "workload delete --workload=j --cluster=c --zone=us-east5-a",
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("delete", "--cluster", "c", *ZONE), "--name (empty)"),
        (("destroy", "--cluster", "c"), "first word destroy"),
        (("run", "--cluster", "c", *ZONE, "--type", "v6e-8", "--name", "j"), "needs --image"),
        (("cluster", "--cluster", "c", *ZONE), "needs --type"),
        (("status", "--cluster", "c"), "name the zone"),
    ],
)
def test_a_wrong_gke_option_is_named_before_xpk_is_called(cloud, words, told):
    said, line = xpk(cloud, *words)
    assert said.returncode == 2 and told in said.stderr and not line
