"""Files: blocks of K/V that outlive the process. FileStore is the door; file_format.py says what is in a file."""

from nanoinfer.cache.storeys.files.block_files import FileStats
from nanoinfer.cache.storeys.files.keys import namespace_bytes, plain_namespace
from nanoinfer.cache.storeys.files.store import Fetch, FileStore

__all__ = ["Fetch", "FileStats", "FileStore", "namespace_bytes", "plain_namespace"]
