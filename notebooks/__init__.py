"""The notebook series, and the tools that make, grade and export it. README.md here says how to change a notebook."""
