"""The papers' boxes: online (PPO … DAPO) and offline (SFT) training."""
