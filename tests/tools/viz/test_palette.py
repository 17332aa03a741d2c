"""The palette, seen with each colour blindness and in grey: roles that meet in one picture stay apart."""

from itertools import combinations

import numpy as np
import pytest

pytest.importorskip("matplotlib")


from nanoinfer.viz.palette import FETCHED, LINES, PHASE_STYLES, REQUESTS, ROLES, Style, owner_style
from nanoinfer.viz.passes import ADAPTERS

# Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency" (2009),
# severity 1.0, for linear RGB.
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
LUMINANCE = np.array([0.2126729, 0.7151522, 0.0721750])
REQUEST_ROLES = {f"request {i}": style for i, style in enumerate(REQUESTS)}
PICTURES: dict[str, dict[str, Style]] = {
    "slot_map": {role: ROLES[role] for role in ("free", "tree", "tree_locked", "leaked", "conflict")} | REQUEST_ROLES,
    "slot_map, no owners given": {role: ROLES[role] for role in ("free", "in_use", "conflict")},
    "request_rows": {role: ROLES[role] for role in ("tree", "tree_locked", "leftover")} | REQUEST_ROLES,
    "input_metadata": {role: ROLES[role] for role in ("free", "tree", "new")} | REQUEST_ROLES,
    "extend_mask": {role: ROLES[role] for role in ("tree", "new", "hidden")},
    "padded_batch": {"used": REQUESTS[0], "padding": ROLES["padding"]},
    "timeline": PHASE_STYLES | {f"from {storey}": style for storey, style in FETCHED.items()},
    "adapter_rows": {"free": ROLES["free"]} | {f"adapter {i}": style for i, style in enumerate(ADAPTERS)},
}


def linear(colour: str) -> np.ndarray:
    """#rrggbb → linear RGB [3]."""
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """Linear RGB → CIE L*a*b*, D65: distances in it are differences one sees."""
    to_xyz = np.array(
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    )
    xyz = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def difference(a: str, b: str, vision: str) -> float:
    return float(np.linalg.norm(lab(VISION[vision] @ linear(a)) - lab(VISION[vision] @ linear(b))))


def lightness(colour: str) -> float:
    """L*, 0..100: all that grey print keeps."""
    return float(lab(linear(colour))[0])


@pytest.mark.parametrize("picture", PICTURES)
def test_roles_that_meet_in_a_picture_differ_for_every_eye_and_in_grey(picture: str) -> None:
    for (a, one), (b, other) in combinations(PICTURES[picture].items(), 2):
        if one.hatch == other.hatch:
            assert min(difference(one.face, other.face, vision) for vision in VISION) >= 14, (a, b)
            assert abs(lightness(one.face) - lightness(other.face)) >= 8, (a, b)


def test_lines_of_a_chart_differ_for_every_eye_by_colour_or_dashes() -> None:
    for vision in VISION:
        for (i, a), (j, b) in combinations(enumerate(LINES), 2):
            assert i % 4 != j % 4 or difference(a, b, vision) >= 14, (vision, a, b)


def test_text_can_be_read_on_its_face() -> None:
    """The contrast ratio that WCAG asks of text, 4.5; of what is recessive on purpose, 3."""
    for role, style in (ROLES | REQUEST_ROLES | PHASE_STYLES).items():
        darker, lighter = sorted(float(LUMINANCE @ linear(colour)) for colour in (style.face, style.text))
        assert (lighter + 0.05) / (darker + 0.05) >= (3 if role == "leftover" else 4.5), role


def test_a_request_keeps_its_look_from_picture_to_picture_and_shares_it_with_no_role() -> None:
    looks = {owner_style(label, 5) for label in ("request 2", "row 7: request 2", "request 10", "row 2")}
    assert looks == {REQUESTS[2]}
    assert owner_style("tree of the teacher", 1) == REQUESTS[1]
    assert owner_style("set aside", 3) == ROLES["padding"]
    roles = [*ROLES.values(), *(style for style in PHASE_STYLES.values() if style not in ROLES.values()), *REQUESTS]
    assert len({(style.face, style.hatch) for style in roles}) == len(roles)
