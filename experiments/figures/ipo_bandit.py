"""DPO against IPO on three arms: what deterministic preferences do to the KL term.

Paper: Azar et al. 2310.12036, section 5, figures 1 to 3.
Claim: where one arm always wins, DPO's policy becomes deterministic whatever τ is, as if there were
no KL term; IPO's stays at a distance from the reference that τ sets.
Criterion, in a seed, on the total order a > b > c: DPO's largest probability > .999 for τ ≤ 1;
IPO's probabilities within .02 of its exact optimum, logits (4/3, 2/3, 0)/(2τ), for every τ.
The paper's setting: uniform reference, Adam at .01, minibatches of 9, 18,000 steps.

    python -m experiments.figures.ipo_bandit     (about 30 s on 2 CPU cores)
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.figures.drawing import name_axes, panels, pick, plot_curve
from experiments.figures.frame import Figure, Part, main
from rlhf_jax.losses.preference import dpo, ipo
from rlhf_jax.train.optim import OptimConfig, make_optimizer

LOSSES = {"DPO": dpo, "IPO": ipo}
ORDERS = {
    "a > b > c": ((0, 1), (1, 2), (0, 2)),
    "a, b > c, a and b even": ((0, 1), (1, 0), (0, 2), (1, 2)),
}
TOTAL = "a > b > c"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The paper's."""

    taus: tuple[float, ...] = (0.1, 0.5, 1.0, 5.0)
    steps: int = 18_000
    rows: int = 9
    learning_rate: float = 0.01
    every: int = 300


def train(loss, pairs, seed: int, settings: Settings) -> np.ndarray:
    """Probabilities [τ, logged step, arm] on the way of Adam from the uniform policy."""
    tx = make_optimizer(
        OptimConfig(learning_rate=settings.learning_rate, max_grad_norm=None), settings.steps
    )
    pairs_MS, logref = jnp.asarray(pairs), -jnp.log(3.0)

    def mean_loss(logits_V, pair_BS, tau):
        logp_BS = jax.nn.log_softmax(logits_V)[pair_BS]
        loss_B = loss(logp_BS, jnp.full(logp_BS.shape, logref), jnp.ones(logp_BS.shape), beta=tau)
        return jnp.mean(loss_B)

    def step(carry, key):
        logits_NV, opt_state = carry
        pair_BS = pairs_MS[jax.random.randint(key, (settings.rows,), 0, len(pairs))]
        grads_NV = jax.vmap(jax.grad(mean_loss), (0, None, 0))(logits_NV, pair_BS, taus_N)
        deltas, opt_state = tx.update(grads_NV, opt_state, logits_NV)
        return (optax.apply_updates(logits_NV, deltas), opt_state), None

    def block(carry, keys):
        carry, _ = jax.lax.scan(step, carry, keys)
        return carry, jax.nn.softmax(carry[0], axis=-1)

    @jax.jit
    def run(key):
        keys = jax.random.split(key, (settings.steps // settings.every, settings.every))
        start_NV = jnp.zeros((len(settings.taus), 3))
        return jax.lax.scan(block, (start_NV, tx.init(start_NV)), keys)[1]

    taus_N = jnp.asarray(settings.taus)
    return np.asarray(run(jax.random.key(seed))).transpose(1, 0, 2)


def exact_ipo(tau: float) -> np.ndarray:
    """IPO's optimum on the total order: least squares for h = 1/(2τ) on the three pairs."""
    logits = np.array([4 / 3, 2 / 3, 0]) / (2 * tau)
    return np.exp(logits) / np.exp(logits).sum()


def measure(seed: int, settings: Settings) -> list[dict]:
    rows = []
    for order, pairs in ORDERS.items():
        for name, loss in LOSSES.items():
            pi_NSV = train(loss, pairs, seed, settings)
            rows += [
                dict(
                    order=order,
                    loss=name,
                    tau=tau,
                    step=(s + 1) * settings.every,
                    **dict(zip(("a", "b", "c"), pi_NSV[n, s], strict=True)),
                )
                for n, tau in enumerate(settings.taus)
                for s in range(pi_NSV.shape[1])
            ]
    return rows


def judge(rows: list[dict]) -> dict[str, Part]:
    last = pick(rows, order=TOTAL, step=max(row["step"] for row in rows))
    least = min(max(r["a"], r["b"], r["c"]) for r in pick(last, loss="DPO") if r["tau"] <= 1)
    error = max(
        np.abs(np.array([r["a"], r["b"], r["c"]]) - exact_ipo(r["tau"])).max()
        for r in pick(last, loss="IPO")
    )
    return {
        "DPO's largest probability, τ ≤ 1": Part(least, "> .999", least > 0.999),
        "distance of IPO to its optimum": Part(float(error), "< .02", error < 0.02),
    }


def draw(canvas, rows: list[dict]) -> None:
    taus = sorted({row["tau"] for row in rows})
    kinds = [(order, loss) for order in ORDERS for loss in LOSSES]
    for axes, (order, loss) in zip(panels(canvas, 4, width=3.6), kinds, strict=True):
        for style, tau in enumerate(taus):
            of_tau = pick(rows, order=order, loss=loss, tau=tau)
            plot_curve(axes, of_tau, "step", "a", f"τ = {tau:g}", style)
            if order == TOTAL and loss == "IPO":
                axes.axhline(exact_ipo(tau)[0], color="0.8", linewidth=0.8, zorder=0)
        axes.set_ylim(0, 1.05)
        name_axes(axes, f"{loss}: {order}", "step", "probability of a", legend=loss == "IPO")


FIGURE = Figure(
    name="ipo_bandit",
    title="IPO against DPO on a bandit",
    paper="Azar et al. 2310.12036, figures 1 to 3",
    claim="with deterministic preferences DPO ends at a deterministic policy whatever τ is; IPO "
    "stays where τ puts it",
    criterion="DPO's largest probability > .999 for τ ≤ 1; IPO within .02 of its exact optimum",
    settings=Settings(),
    measure=measure,
    judge=judge,
    draw=draw,
)

if __name__ == "__main__":
    main(FIGURE)
