"""A row of the stories table that ends at once: `python -m tiny_row --out FOLDER ...`, or --die."""

import json
import os
import signal
import sys
from pathlib import Path

NUMBERS = {"kl": 5.5, "distinct_2": 0.94, "ref_perplexity": 3.9}


def main(argv):
    if argv == ["--die"]:
        os.kill(os.getpid(), signal.SIGKILL)
    options = dict(zip(argv[::2], argv[1::2], strict=True))
    out = Path(options["--out"])
    out.mkdir(parents=True, exist_ok=True)
    if not Path(options["--prompts.path"]).exists():
        raise SystemExit(f"error: {options['--prompts.path']} is not a file")
    runs = out / "runs"
    runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
    result = {
        "before": {**NUMBERS, "score": 0.6, "watch/vader": 0.6},
        "after": {**NUMBERS, "score": 1.75, "watch/vader": 0.92},
        "steps": 10,
        "updates": 40,
        "seed": int(options["--seed"]),
        **(
            {"tokens": 400} if out.name == "two" else {"tokens_drawn": 12345, "tokens_trained": 678}
        ),
    }
    (out / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1:])
