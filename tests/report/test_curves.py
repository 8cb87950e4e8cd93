import numpy as np
from matplotlib.image import imread

from rlhf_jax.report.curves import ONLINE_PANELS, Panel, draw_curves, series_of, smooth


def lines(n):
    for step in range(1, n + 1):
        line = {"step": step, "score": step / n, "kl_response": 0.1, "entropy": 1.0}
        yield {**line, "length": None, "eval/score": 0.5} if step % 5 == 0 else line


def test_series_skip_what_was_not_logged():
    logged = list(lines(10))
    steps, values = series_of(logged, "eval/score")
    assert steps.tolist() == [5, 10] and values.tolist() == [0.5, 0.5]
    assert len(series_of(logged, "score")[0]) == 10
    assert len(series_of(logged, "length")[0]) == 0


def test_running_mean():
    assert smooth(np.array([1.0, 3.0, 5.0, 7.0]), 2).tolist() == [1, 2, 4, 6]
    assert smooth(np.array([2.0, 4.0]), 10).tolist() == [2, 3]


def test_a_picture_of_what_there_is(tmp_path):
    path = tmp_path / "curves.png"
    drawn = draw_curves(list(lines(80)), path, title="run")
    assert drawn == ["Score", "KL to the reference", "Entropy"]
    image = imread(path)[..., :3]
    assert image.shape[0] > 300 and image.shape[1] > 900
    # readable in black and white: every pixel is a grey
    assert np.allclose(image.min(axis=2), image.max(axis=2), atol=1e-6)
    assert (image < 0.2).any()


def test_one_point_and_nothing(tmp_path):
    path = tmp_path / "curves.png"
    assert draw_curves([], path, title="run") == []
    assert not path.exists()
    panel = Panel("One", "unit", (("x", "a"), ("y", "b")))
    line = {"step": 3, "y": 1.0}
    assert draw_curves([line], path, title="run", panels=(panel,)) == ["One"]
    assert (imread(path)[..., :3] < 0.2).any()


def test_at_most_six_panels(tmp_path):
    names = {name for panel in ONLINE_PANELS for name, _ in panel.series}
    full = [{"step": s, **dict.fromkeys(names, 0.5)} for s in (1, 2)]
    drawn = draw_curves(full, tmp_path / "curves.png", title="run")
    assert len(drawn) == 6 and drawn[0] == "Score"
