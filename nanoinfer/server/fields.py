"""How strictly a body is read: what is ignored, what is refused, and what text may be."""

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from nanoinfer.requests.keywords import CLOSE, LONGEST

logger = logging.getLogger("nanoinfer.server")
T = TypeVar("T")
Label = Annotated[str, Field(max_length=256)]  # what is only kept or repeated: the cache keeps salts, for example
MOST_ITEMS = 10_000  # in a list, however large the body may be; server settings have lower limits for some
# A list is read up to the first item that is wrong: pydantic would make an object for each one, which takes seconds.
Items = Annotated[list[T], Field(fail_fast=True, max_length=MOST_ITEMS)]


@dataclass(frozen=True)
class Elsewhere:
    """A field of other servers that does not exist here, with a sentence that says what to use instead. `harmless`: values
    that ask for what happens here anyway."""

    sentence: str
    harmless: tuple[object, ...] = ()

    def accepts(self, value: object) -> bool:
        """True when `value` is one of the harmless ones. The types must be equal, too: True is not 1."""
        return any(type(value) is type(same) and value == same for same in self.harmless)


def shown(name: str) -> str:
    """A name from a body as messages can quote it: short, and encodable as UTF-8."""
    return (name if len(name) <= 60 else f"{name[:60]}…").encode("utf-8", "backslashreplace").decode()


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The most similar of the `known` names, as the end of a sentence; empty if none is similar."""
    close = get_close_matches(name, list(known), n=1, cutoff=CLOSE) if len(name) <= LONGEST else []
    return f"; did you mean {close[0]!r}?" if close else ""


def _check_text(name: str, value: Any) -> None:
    """JSON can write half a surrogate pair (\\ud800), which no answer and no tokenizer could encode."""
    try:
        (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode()
    except UnicodeEncodeError:
        raise PydanticCustomError("not_utf8", "must be text that can be encoded as UTF-8", {"field": name}) from None
    except RecursionError:
        raise PydanticCustomError("too_deep", "has too many levels of lists and objects", {"field": name}) from None


MOST_FIELDS = 100  # of one object
MOST_NOTED = 1000  # different names of fields: nobody may fill the log
_noted: set[str] = set()


def note_ignored(name: str) -> None:
    """Log that a field is ignored, once for each name."""
    if name not in _noted and len(_noted) < MOST_NOTED:
        _noted.add(name)
        logger.warning("ignored: the field %r, which means nothing here", shown(name))


class Strict(BaseModel):
    """A body, or part of one. Nothing is converted ("1" is no number; 1 is one, too, where 1.0 is expected).

    A field of `unsupported` is refused with a reason, unless its value asks for nothing. So is what looks like one of ours
    misspelt, unless it is null. Any other unknown field is ignored, and logged."""

    model_config = ConfigDict(strict=True, protected_namespaces=())
    unsupported: ClassVar[Mapping[str, Elsewhere]] = {}

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_cannot_be_done(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if len(data) > MOST_FIELDS:
            raise PydanticCustomError("too_many", "must not have more than {most} fields", {"most": MOST_FIELDS})
        known = {field.alias or name for name, field in cls.model_fields.items()}
        for name, value in data.items():
            if name in known:
                _check_text(name, value)
            elif name in cls.unsupported:
                if not cls.unsupported[name].accepts(value):
                    why = cls.unsupported[name].sentence
                    raise PydanticCustomError("unsupported", "is not supported: {why}", {"why": why, "field": name})
            elif value is not None and (hint := did_you_mean(name, known)):
                raise PydanticCustomError("unknown", "no such field{hint}", {"hint": hint, "field": shown(name)})
            else:
                note_ignored(name)
        return data
