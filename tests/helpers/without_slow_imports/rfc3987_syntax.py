"""In the way of a package of this name, which Jupyter installs: jsonschema takes it if it is there, and each process of Ray
would compile its grammar for seconds. Ray's processes find this file first, and jsonschema does without."""

raise ImportError("left out of Ray's processes")
