"""SPIN (2401.01335): a policy plays against its own last round until it writes like the data.

    python -m experiments.spin_stories --model ../shared/models/stories260K/hf

The data are the friendly stories among the real ones (VADER ≥ .8 after 48 tokens). Each round draws
a continuation of each opening from the policy and trains it by DPO, against itself as it was, to
prefer the real one. No score is optimised: that of held-out answers rises as far as friendly
stories are friendlier than stories. A stopped run goes on where it stopped.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from experiments import dpo_stories, grpo_stories, sample_stories
from experiments.launch import launch
from rlhf_jax.algorithms.dpo import spin
from rlhf_jax.bind import bind
from rlhf_jax.data.comparisons import read_samples
from rlhf_jax.data.spin import spin_pairs
from rlhf_jax.data.stories import story_continuations, story_openings
from rlhf_jax.errors import ConfigError, check_number
from rlhf_jax.loops import preference, sampling
from rlhf_jax.loops.answers import answer_from_folder
from rlhf_jax.loops.run import open_path
from rlhf_jax.models.tokenizer import Tokenizer, encode_after
from rlhf_jax.report.run_folder import RunFolder
from rlhf_jax.rewards.sentiment import vader
from rlhf_jax.types import replace


def friendly(*, path: str, model: str, least: float, tokens: int) -> list[dict]:
    """Demonstrations: real continuations of training openings, cut as long as samples are.

    path: of the stories.
    model: folder of the tokenizer.
    least: VADER score from which a story is friendly.
    tokens: of a continuation.
    """
    tokenizer, rows = Tokenizer.from_folder(model), []
    for row in story_continuations(path=path):
        prompt = tokenizer.encode(row["prompt"])
        ids = encode_after(tokenizer, row["prompt"], prompt, row["completion"])[:tokens]
        text = tokenizer.decode_completion(prompt, ids)
        if len(ids) == tokens and vader([row["prompt"]], [text], [row])[0] >= least:
            rows.append({"prompt": row["prompt"], "completion": text, "completion_ids": ids})
    return rows


def openings(*, path: str, model: str, least: float, tokens: int) -> tuple[list[dict], list[dict]]:
    """Prompts of the friendly stories, and the held-out openings."""
    rows = friendly(path=path, model=model, least=least, tokens=tokens)
    return [{"prompt": row["prompt"]} for row in rows], story_openings(path=path)[1]


def pairs(*, samples: str, path: str, model: str, least: float, tokens: int) -> list[dict]:
    """Every friendly story against the samples of its opening."""
    rows = friendly(path=path, model=model, least=least, tokens=tokens)
    return spin_pairs(rows, read_samples(samples))


DATA = dict(
    path=grpo_stories.CONFIG.prompts.kw["path"],
    model=grpo_stories.CONFIG.model,
    least=0.8,
    tokens=48,
)
SAMPLES = replace(
    sample_stories.CONFIG,
    out="",
    model="",
    prompts=bind(openings, **DATA),
    sampling=replace(sample_stories.CONFIG.sampling, num_samples=2),
)
DPO = replace(
    dpo_stories.CONFIG,
    out="",
    model="",
    objective=spin(lam=1.0),
    preferences=bind(pairs, samples="", **DATA),
    held_out=None,
    num_steps=12,
    optim=replace(dpo_stories.CONFIG.optim, learning_rate=3e-4, warmup_updates=4),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpinConfig:
    """Rounds of sampling and training; their folders, models, samples and seeds follow."""

    out: str = "runs/spin_stories"
    """Holds two run folders a round, and result.json."""
    seed: int = 0
    """Of every round."""
    restart: bool = False
    """Move what the folder holds aside (to FOLDER.1, FOLDER.2, …) and begin anew."""
    model: str = grpo_stories.CONFIG.model
    """Folder of the model that the first round starts from."""
    rounds: int = 3
    """How often the opponent is renewed (T of the paper)."""
    samples: sampling.SampleConfig = SAMPLES
    """How the opponent answers."""
    dpo: preference.PreferenceConfig = DPO
    """How a round trains. Its answers are also how the policy is measured."""

    def __post_init__(self):
        check_number("rounds", self.rounds, low=1)
        if self.dpo.answers is None:
            raise ConfigError("dpo.answers says how the policy is measured: it cannot be left out")
        for name in ("samples", "dpo"):
            part = getattr(self, name)
            for option, default in (("out", ""), ("model", ""), ("seed", 0), ("restart", False)):
                if getattr(part, option) != default:
                    raise ConfigError(f"{name}.{option} is set by the rounds; use --{option}")


CONFIG = SpinConfig()


def main(cfg: SpinConfig) -> dict:
    """Play the rounds; returns what the policy was worth before, and is after."""
    open_path(cfg, for_several=True)
    policy, results = cfg.model, []  # π_0
    for number in range(cfg.rounds):
        print(f"== round {number}", flush=True)
        folder, seed = Path(cfg.out, f"round_{number}"), cfg.seed + number
        drawn = str(folder / "samples")  # y_l ~ π_t(· | x)
        sampling.run(replace(cfg.samples, out=drawn, model=policy, seed=seed))
        learnt = cfg.dpo.preferences.replace(samples=drawn)  # y_w: the data
        part = replace(cfg.dpo, out=str(folder), model=policy, seed=seed, preferences=learnt)
        results.append(preference.run(part))  # against π_t, the model it starts from
        policy = str(folder / "policy")  # π_{t+1}
    like, counts = replace(cfg.dpo, seed=cfg.seed), ("steps", "updates", "seconds", "tokens")
    result = {
        "before": results[0]["before"],
        "after": answer_from_folder(cfg.dpo.answers, policy, cfg.model, like=like),
        **{name: sum(r[name] for r in results) for name in counts},
        "seed": cfg.seed,
    }
    with RunFolder(cfg.out) as opened:
        opened.write_result(result)
    before, after = result["before"], result["after"]
    print(f"VADER {before['score']:.3f} -> {after['score']:.3f}, KL {after['kl']:.1f} nats")
    return result


if __name__ == "__main__":
    launch(CONFIG, main)
