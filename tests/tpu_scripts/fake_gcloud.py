"""A gcloud that has no cloud: checks its arguments, does as a scenario says, runs ssh here.

Installed on PATH as `gcloud` by test_tpu_scripts.py. The folder $FAKE_CLOUD holds scenario.json,
the calls made (calls.jsonl) and a home folder for each worker. Flags are those of the commands'
reference (SDK 528).
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

CREATE = "--data-disk --description --labels --metadata --metadata-from-file --network --range "
CREATE += "--scopes --service-account --subnetwork --tags --accelerator-type --topology --type "
SSH = "--ssh-key-expiration --ssh-key-expire-after --ssh-key-file --strict-host-key-checking "
FLAGS = {  # command: flags with a value, flags without
    "queued-resources create": (
        CREATE + "--node-count --node-id --node-prefix --runtime-version --valid-after-duration "
        "--valid-after-time --valid-until-duration --valid-until-time --reservation-host-folder "
        "--reservation-host-organization --reservation-host-project",
        "--async --guaranteed --internal-ips --reserved --shielded-secure-boot --spot",
    ),
    "queued-resources describe": ("", ""),
    "queued-resources delete": ("", "--async --force"),
    "tpu-vm create": (
        CREATE + "--queue-count --version",
        "--async --internal-ips --preemptible --reserved --shielded-secure-boot --spot",
    ),
    "tpu-vm delete": ("", "--async"),
    "tpu-vm list": ("--filter --limit --page-size --sort-by", "--uri"),
    "tpu-vm ssh": (
        SSH + "--command --output-directory --ssh-flag --worker",
        "--dry-run --force-key-file-overwrite --internal-ip --plain",
    ),
    "tpu-vm scp": (
        SSH + "--scp-flag --worker",
        "--compress --dry-run --force-key-file-overwrite --internal-ip --plain --recurse",
    ),
}
EVERYWHERE = ("--zone --project --format", "--quiet")
QUOTA = (
    "ERROR: (gcloud.compute.tpus.queued-resources.create) RESOURCE_EXHAUSTED: Quota limit "
    "'TPUV5sLitepodPerProjectPerZone' has been exceeded. Limit: 0 in zone."
)
STOCKOUT = "ERROR: RESOURCE_EXHAUSTED: There is no more capacity in the zone; try later."


def parse(words):
    """(command, positional words, flags) of a call; SystemExit 2 as gcloud ends on a wrong one."""
    if words[:2] != ["compute", "tpus"] or " ".join(words[2:4]) not in FLAGS:
        raise SystemExit(f"fake gcloud knows no {words}")
    command = " ".join(words[2:4])
    valued, bare = (
        set((a + " " + b).split()) for a, b in zip(FLAGS[command], EVERYWHERE, strict=True)
    )
    names, flags = [], {}
    for word in words[4:]:
        flag, equals, value = word.partition("=")
        if not word.startswith("--"):
            names.append(word)
        elif (equals and flag in valued and value) or (not equals and flag in bare):
            flags[flag] = value if equals else True
        else:
            print(f"ERROR: (gcloud) unrecognized arguments: {word}", file=sys.stderr)
            raise SystemExit(2)
    if "--zone" not in flags:
        raise SystemExit("ERROR: (gcloud) zone is missing")
    return command, names, flags


def main(words):
    command, names, flags = parse(words)
    cloud = Path(os.environ["FAKE_CLOUD"])
    with open(cloud / "calls.jsonl", "a") as calls:
        calls.write(json.dumps(words) + "\n")
    scenario = json.loads((cloud / "scenario.json").read_text())
    if scenario.get("only_listens"):
        return
    globals()[command.replace("-", "_").replace(" ", "_")](cloud, scenario, names, flags)


def keep(cloud, scenario):
    (cloud / "scenario.json").write_text(json.dumps(scenario))


def made(scenario, slices):
    """The slices that come into being are those of the scenario, under the names asked for."""
    states = scenario.get("will_be") or ["READY"] * len(slices)
    workers = scenario.get("workers", 1)
    scenario["slices"] = {s: [state, workers] for s, state in zip(slices, states, strict=False)}


def refuse(scenario):
    if "refusal" in scenario:
        raise SystemExit({"quota": QUOTA, "stockout": STOCKOUT}[scenario["refusal"]])


def queued_resources_create(cloud, scenario, names, flags):
    assert len(names) == 1 and "--runtime-version" in flags and "--accelerator-type" in flags
    refuse(scenario)
    count = int(flags.get("--node-count", 1))
    assert ("--node-id" in flags) != ("--node-prefix" in flags), flags
    if "--node-id" in flags:
        made(scenario, [flags["--node-id"]])
    else:
        made(scenario, [f"{flags['--node-prefix']}-{i}" for i in range(count)])
    scenario["request"] = names[0]
    keep(cloud, scenario)


def queued_resources_describe(cloud, scenario, names, flags):
    if scenario.get("request") != names[0]:
        raise SystemExit("ERROR: (gcloud.compute.tpus.queued-resources.describe) NOT_FOUND: no")
    if "failedData" in flags["--format"]:
        return print("the allocation interval has passed")
    states = scenario.get("states", ["ACTIVE"])
    print(states[0])
    scenario["states"] = states[1:] or states
    keep(cloud, scenario)


def queued_resources_delete(cloud, scenario, names, flags):
    assert names == [scenario["request"]] and flags["--force"] and flags["--quiet"]
    del scenario["request"], scenario["slices"]
    keep(cloud, scenario)


def tpu_vm_create(cloud, scenario, names, flags):
    assert len(names) == 1 and "--version" in flags and "--accelerator-type" in flags
    refuse(scenario)
    made(scenario, names)
    keep(cloud, scenario)


def tpu_vm_list(cloud, scenario, names, flags):
    pattern = re.fullmatch(r'name ~ "(.+)"', flags["--filter"])[1]
    for name, (state, workers) in reversed(scenario.get("slices", {}).items()):
        if re.search(pattern, f"projects/p/locations/z/nodes/{name}"):
            print(name, state, workers, sep="\t")


def tpu_vm_delete(cloud, scenario, names, flags):
    assert flags["--quiet"]
    del scenario["slices"][names[0]]
    keep(cloud, scenario)


def home_of(cloud, scenario, place, flags):
    name, worker = place, int(flags["--worker"])
    assert worker < scenario["slices"][name][1]
    if f"{name}:{worker}" in scenario.get("unreachable", []):
        print("ERROR: [0] Failed to connect: Connection timed out", file=sys.stderr)
        raise SystemExit(255)
    home = cloud / f"{name}.{worker}"
    home.mkdir(exist_ok=True)
    return home


def tpu_vm_ssh(cloud, scenario, names, flags):
    home = home_of(cloud, scenario, names[0], flags)
    failing = scenario.get("failing", {}).get(f"{names[0]}:{flags['--worker']}")
    if failing and failing in flags["--command"]:
        raise SystemExit("bash: no space left on device")
    env = {"HOME": str(home), "PATH": f"{cloud / 'worker_bin'}:{os.environ['PATH']}"}
    command = ["bash", "-c", flags["--command"]]
    raise SystemExit(subprocess.run(command, env=env, cwd=home).returncode)


def tpu_vm_scp(cloud, scenario, names, flags):
    source, (name, to) = names[0], names[1].split(":")
    shutil.copy(source, home_of(cloud, scenario, name, flags) / to)


if __name__ == "__main__":
    main(sys.argv[1:])
