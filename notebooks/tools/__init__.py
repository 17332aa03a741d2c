"""What `notebooks.build`, `notebooks.grade` and `notebooks.to_nbgrader` are made of."""
