"""What tests share: fakes, small engines, checkpoints, oracles. No tests are in here."""
