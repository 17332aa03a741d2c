"""In the way of a package of this name, which Jupyter installs: jsonschema takes it if it is there, and each process that
loads it would compile its grammar for seconds. Processes of tests find this file first, and jsonschema does without."""

raise ImportError("left out of the processes of tests")
