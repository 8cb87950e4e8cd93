from rlhf_jax.report.differences import differences, shown, without_seed

CLIP = {"fn": "rlhf_jax.losses.surrogate:clipped", "high": 0.2, "low": 0.2}


def test_numbers_inside_a_term_differ_by_name_and_terms_as_a_whole():
    wide, other = {**CLIP, "high": 0.28}, {"fn": "a.b:cispo", "high": 5.0}
    old = {"objective": {"surrogate": CLIP, "whiten": None}, "steps": [1, 2], "seed": 0}
    new = {"objective": {"surrogate": wide, "whiten": None}, "steps": [1, 3], "seed": 0}
    assert differences(old, new) == {"objective.surrogate.high": (0.2, 0.28), "steps.1": (2, 3)}
    new["objective"]["surrogate"] = other
    assert differences(old, new)["objective.surrogate"] == (CLIP, other)
    assert differences(old, old) == {}


def test_lists_of_other_lengths_and_what_one_side_lacks():
    assert differences({"ks": [1]}, {"ks": [1, 2]}) == {"ks": ([1], [1, 2])}
    assert differences({}, {"lora": None, "seed": 1}) == {"seed": (None, 1)}
    assert differences({"on": 1}, {"on": True}) == {"on": (1, True)}
    assert differences({"rate": 1}, {"rate": 1.0}) == {}


def test_terms_are_shown_in_one_line():
    assert shown(CLIP) == "clipped(high=0.2, low=0.2)"
    assert shown({"estimator": {"fn": "a:k3"}, "coef": 0.2}) == "(estimator=k3(), coef=0.2)"
    assert shown([None, True, "a b", 1e-06]) == "[null, true, a b, 1e-06]"


def test_seeds_and_places_are_left_out():
    def config(seed, out, high):
        return {
            "out": out,
            "restart": bool(seed),
            "seed": seed,
            "model": f"{out}/warmup/policy",
            "critic_from": f"shared/seed_{seed}/policy",
            "prompts": {"fn": "a:sums", "seed": seed, "rows": [{"seed": seed}]},
            "high": high,
        }

    left, right = config(0, "runs/a", 0.2), config(1, "runs/b", 0.2)
    assert left != right and without_seed(left) == without_seed(right)
    assert without_seed(left) != without_seed(config(0, "runs/a", 0.28))
    assert without_seed(left)["model"] == "OUT/warmup/policy"
