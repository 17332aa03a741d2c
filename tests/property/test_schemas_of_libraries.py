"""JSON schemas as libraries write them: one compiles, and outputs are valid, or it is refused, and the keyword is named."""

import datetime
import enum
import ipaddress
import json
import random
import re
import uuid
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Optional

import jsonschema
import pydantic
import pytest
from openai import pydantic_function_tool
from openai.lib._parsing._completions import type_to_response_format_param
from pydantic import BaseModel, ConfigDict, Field, RootModel, TypeAdapter

from nanoinfer.sampling.grammar.compiler import Grammar
from tests.helpers.grammars import matcher_of, random_output, story_compiler


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Node(BaseModel):
    value: int
    next: Optional["Node"] = None


class Tree(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    children: list["Tree"]


class Table(RootModel[dict[str, list[int]]]):
    pass


class Point(NamedTuple):
    x: int
    y: float


@dataclass
class Place:
    name: str
    at: tuple[float, float] | None = None


class Order(BaseModel):
    """A bit of everything, as a response format."""

    id: uuid.UUID
    at: datetime.datetime
    price: Decimal
    pet: Cat | Dog
    colours: list[Colour] = Field(max_length=2)
    note: str | None = Field(description="free text")


def short(pattern: str | None = None) -> Any:
    return Annotated[str, Field(min_length=1, max_length=5, pattern=pattern)]


TYPES: dict[str, Any] = {
    "datetime": datetime.datetime,
    "time": datetime.time,
    "timedelta": datetime.timedelta,
    "UUID": uuid.UUID,
    "UUID4": pydantic.UUID4,
    "Decimal": Decimal,
    "Decimal with bounds": Annotated[Decimal, Field(max_digits=5, decimal_places=2, ge=0, lt=100)],
    "Enum": Colour,
    "IntEnum": Level,
    "Literal": Literal["a", 1, None],
    "Optional": int | None,
    "discriminated": Annotated[Cat | Dog, Field(discriminator="kind")],
    "dict[str, int]": dict[str, int],
    "dict[UUID, int]": dict[uuid.UUID, int],
    "dict[date, int]": dict[datetime.date, int],
    "dict[Enum, int]": dict[Colour, int],
    "dict[Literal, int]": dict[Literal["a", "b"], int],
    "dict with a pattern": dict[short("^[a-z]+$"), int],
    "dict with lengths": dict[short(), int],
    "dict[IPv4Address, int]": dict[ipaddress.IPv4Address, int],
    "dict of two": Annotated[dict[str, int], Field(min_length=2)],
    "set": set[int],
    "tuple": tuple[int, str],
    "NamedTuple": Point,
    "dataclass": Place,
    "conint": Annotated[int, Field(ge=0, lt=10, multiple_of=5)],
    "int64": Annotated[int, Field(ge=-(2**63), le=2**63 - 1)],
    "uint64": Annotated[int, Field(ge=0, lt=2**64)],
    "constr": short("^[a-z]*$"),
    "recursive": Node,
    "a tree": Tree,
    "RootModel": Table,
    "IPv4Address": ipaddress.IPv4Address,
    "IPv6Network": ipaddress.IPv6Network,
    "AnyUrl": pydantic.AnyUrl,
    "Path": Path,
    "bytes": bytes,
    "Base64Bytes": pydantic.Base64Bytes,
    "Json": pydantic.Json[int],
    "SecretStr": pydantic.SecretStr,
    "Pattern": re.Pattern,
    "JsonValue": pydantic.JsonValue,
}
ZOD = Path(__file__).parents[1] / "helpers" / "zod_schemas.json"  # what toJSONSchema of zod 4.6 writes
CASES = {
    **{f"pydantic: {name}": TypeAdapter(each).json_schema() for name, each in TYPES.items()},
    **{f"zod: {name}": each for name, each in json.loads(ZOD.read_text()).items()},
    "openai: response format": type_to_response_format_param(Order)["json_schema"]["schema"],  # type: ignore[index,typeddict-item]
    "openai: tool": pydantic_function_tool(Tree)["function"]["parameters"],  # type: ignore[typeddict-item],
}
KEYED = ("UUID", "date", "Enum", "Literal", "IPv4Address")
RECORDS = (
    "record_enum",
    "partial_record",
    "record_regex",
    "record_uuid",
    "record_min",
    "record_literal",
    "record_number",
)
REFUSED = {  # what its reason says
    **{f"pydantic: dict[{key}, int]": "propertyNames" for key in KEYED},
    **{f"pydantic: dict with {what}": "propertyNames" for what in ("a pattern", "lengths")},
    **{f"zod: {name}": "propertyNames" for name in RECORDS},
    "pydantic: dict of two": "minProperties",
    "pydantic: set": "uniqueItems",
    "zod: dur": "pattern",
    "zod: emoji": "pattern",
    "zod: never": "not",
    "zod: regexlook": "pattern",
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_written_for_it_is_valid_or_it_is_refused_by_its_keyword(name: str) -> None:
    schema, rng = CASES[name], random.Random(0)
    if name in REFUSED:
        with pytest.raises(ValueError, match=REFUSED[name]):
            story_compiler().compile(Grammar("json_schema", json.dumps(schema)))
        return
    for _ in range(6):
        output = random_output(matcher_of("json_schema", json.dumps(schema)), rng, most=60)
        if output is not None:
            jsonschema.validate(json.loads(output), schema)
