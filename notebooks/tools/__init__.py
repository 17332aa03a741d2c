"""The parts of `notebooks.build`, `notebooks.sync`, `notebooks.grade` and `notebooks.to_nbgrader`."""
