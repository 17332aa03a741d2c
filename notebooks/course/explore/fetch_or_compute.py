"""Fetch K/V or compute it again? What a prompt takes on an H100 either way, by model and by the bandwidth of the tier."""

from notebooks.course.explore import Bar, Bars, Control, Frame, InteractiveFigure, Number, Numbers
from notebooks.course.hardware import H100, LLAMA_8B, ModelShape

PROMPT = 4000  # tokens
BEGIN = 1e-3  # seconds before the first byte comes
SHAPES = ModelShape("SmolLM2 135M", 0.135e9, 30, 3, 64), LLAMA_8B, ModelShape("Llama 3.1 70B", 70.6e9, 80, 8, 128)
MODELS = {model.name: model for model in SHAPES}
TIERS = {
    0.5: "network drive",
    3: "SSD",
    7: "fast SSD",
    14: "two SSDs",
    25: "PCIe 4",
    50: "PCIe 5",
    450: "NVLink-C2C",
}  # GB/s


def fetch_seconds(model: ModelShape, bandwidth: float, tokens: float = PROMPT) -> float:
    """How long the K/V of so many tokens takes, at so many bytes per second."""
    return BEGIN + tokens * model.kv_bytes_per_token / bandwidth


def fetch_or_compute(_: object = None) -> InteractiveFigure:
    """Model and bandwidth → the time to compute a prompt's K/V and to fetch it, and the bandwidth where both are equal."""

    def show(name: str, speed: float) -> Frame:
        model = MODELS[name]
        compute, took = model.pass_seconds(H100, PROMPT), fetch_seconds(model, 1e9 * speed)
        equal = PROMPT * model.kv_bytes_per_token / max(compute - BEGIN, 1e-9)
        most = 2.5 * compute
        bars = [Bar("compute", compute, millis(compute), look="new")]
        for other in TIERS:
            there = fetch_seconds(model, 1e9 * other)
            text, look = millis(there) + " (cut off)" * (there > most), "highlight" if other == speed else "tree"
            bars.append(Bar(f"fetch, {other:g} GB/s", min(there, most), text, look=look))
        bound = f"{equal / 1e9:,.1f} GB/s" if compute > BEGIN else "none: it begins too late"
        numbers = [
            Number("K/V of one token", f"{model.kv_bytes_per_token / 1000:,.0f} KB"),
            Number("arithmetic for one token", f"{2 * model.parameters / 1e9:,.1f} GFLOP"),
            Number("bandwidth at which both take as long", bound, strong=True),
            Number("fetched instead of computed", f"{compute / took:.1f} times as fast", strong=True),
        ]
        title = f"A prompt of {PROMPT:,} tokens, {name}"
        return Frame(
            [Bars(title, bars, 1.35 * most), Numbers("What decides", numbers)],
            f"{name}: {millis(compute)} to compute {PROMPT:,} tokens, {millis(took)} to fetch their K/V at "
            f"{speed:g} GB/s ({TIERS[speed]}). {'Fetching' if took < compute else 'Computing'} is faster.",
        )

    tiers = [f"{speed:g} ({name})" for speed, name in TIERS.items()]
    return InteractiveFigure(
        "Fetch K/V, or compute it again?",
        "Drag the bandwidth, and look at which bar is shorter. Then take a larger model: its arithmetic per token grows "
        "faster than its K/V, and slower tiers begin to pay.",
        [
            Control("model", "model", list(MODELS), start=1),
            Control("bandwidth", "GB/s", list(TIERS), tiers, 5),
        ],
        show,
        still=(1, 2),
        height=640,
        source="Computed: data sheet figures of an H100 at its peak, 2 bytes per number, and 1 ms before the first byte. A "
        "model on several GPUs computes and fetches a share on each, so the comparison stays.",
    )


def millis(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms"
