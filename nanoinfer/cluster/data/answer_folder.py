"""AnswerFolder: the answers of a dataset run, so that what is done stays done."""

import fcntl
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

SETTINGS, LOCK, PARTS = "settings.json", "lock", "part-*.parquet"
FORMAT = "nanoinfer answers 1"


class AnswerFolder:
    """A folder of parquet files, of which one process at a time is the only writer: `with AnswerFolder(path, "key", ...)`.

    A file appears whole or not at all. `done`: the keys of all rows that have been answered. ValueError when the folder
    belongs to another run (`settings` differ), or when another process writes into it. A "seed" of None is drawn by the
    first run and fits every later one.
    """

    def __init__(self, path: str | Path, key_column: str, settings: Mapping[str, Any]):
        self.path, self._key, self.settings = Path(path).expanduser().absolute(), key_column, dict(settings)
        self.done: set[Any] = set()
        self._next = 0
        self._lock: Any = None

    def __enter__(self) -> "AnswerFolder":
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = (self.path / LOCK).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise ValueError(f"output={str(self.path)!r}: another process writes there") from None
        try:
            self._check_settings()
            self._read()
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.close()

    def add(self, table: Any) -> int:
        """Write the rows of a pyarrow table that are not there yet, once; returns how many they were."""
        import pyarrow.parquet as parquet

        new = [i for i, key in enumerate(table.column(self._key).to_pylist()) if key not in self.done]
        if not new:
            return 0
        rows = table.take(new)
        target = self.path / f"part-{self._next:06}.parquet"
        unfinished = target.with_suffix(".unfinished")
        with unfinished.open("wb") as file:
            parquet.write_table(rows, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(target)
        self._next += 1
        self.done.update(rows.column(self._key).to_pylist())
        return len(new)

    def files(self) -> list[str]:
        """All parts, in the order in which they were written."""
        return [str(path) for path in sorted(self.path.glob(PARTS))]

    def _read(self) -> None:
        import pyarrow.parquet as parquet

        for path in self.path.glob("*.unfinished"):  # of a process that has died
            with suppress(FileNotFoundError):
                path.unlink()
        for name in self.files():
            self.done.update(parquet.read_table(name, columns=[self._key]).column(self._key).to_pylist())
            self._next = int(Path(name).stem.partition("-")[2]) + 1

    def _check_settings(self) -> None:
        """Keep what the first run was asked for; the same must be asked for ever after."""
        path = self.path / SETTINGS
        if not path.exists():
            if self.settings.get("seed") is None:
                self.settings["seed"] = secrets.randbits(63)
            unfinished = path.with_suffix(".unfinished")
            unfinished.write_text(json.dumps({"format": FORMAT, **self.settings}, indent=1) + "\n", encoding="utf-8")
            unfinished.replace(path)
            return
        known = json.loads(path.read_text(encoding="utf-8"))
        if known.pop("format", None) != FORMAT:
            raise ValueError(f"output={str(self.path)!r}: its {SETTINGS} is of something else")
        for name, value in self.settings.items():
            if name == "seed" and value is None:
                continue  # the first run drew one, which stays
            if known.get(name) != json.loads(json.dumps(value)):
                raise ValueError(
                    f"{name}={value!r}: the answers in output={str(self.path)!r} are for {known.get(name)!r}"
                )
        self.settings = known
