"""The package's version: what `nanoinfer.__version__`, the wheel and a server say."""

__version__ = "0.1.0"
