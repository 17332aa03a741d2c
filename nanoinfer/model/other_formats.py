"""Refuses checkpoints that cannot be read (other formats, adapters, git-LFS pointers), and says what to do about each."""

from pathlib import Path

from nanoinfer.requests.gguf_header import SUFFIX
from nanoinfer.requests.tokenizer_files import read_object

LFS_POINTER = b"version https://git-lfs.github.com/spec/"
PICKLED = (".bin", ".pt", ".pth", ".ckpt")
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
NO_MODEL = (
    "consolidated",
    "adapter_",
)  # safetensors files that begin so: the weights in Mistral's own format, an adapter
ONLY = "must be a GGUF file, or a folder with config.json and model.safetensors"


def check_file(path: Path) -> Path:
    """The file `path` if it is a GGUF file, else a FileNotFoundError that says what to do."""
    if path.suffix == SUFFIX:
        return path
    raise FileNotFoundError(f"model {str(path)!r}: is a file; give the folder that it is in ({ONLY})")


def check_folder(path: Path) -> Path:
    """The folder `path`, or the only GGUF file in it. FileNotFoundError when it holds git-LFS pointers, an adapter, several
    GGUF files, or weights in another format. It says how to get a checkpoint from them. Only reads file names and the start
    of small files."""
    files = sorted(file for file in path.iterdir() if file.is_file())
    if problem := pointer_problem(files):
        raise FileNotFoundError(f"{path}: {problem}")
    if weight_files(path) or (path / INDEX).exists():
        return path
    if (path / "adapter_config.json").is_file():
        raise FileNotFoundError(
            f"{path}: is an adapter (PEFT), without the model; load the model and give it the adapter: "
            f"LLM(model, adapters={{'name': {str(path)!r}}})"
        )
    match [file for file in files if file.suffix == SUFFIX]:
        case [file]:
            return file
        case [_, _, *_] as several:
            names = ", ".join(file.name for file in several)
            raise FileNotFoundError(f"{path}: has several GGUF files; give one of them: {names}")
    if others := [file.name for file in files if file.suffix in PICKLED and _is_of_weights(file)]:
        raise FileNotFoundError(
            f"{path}: has weights in {others[0]}; {ONLY}; transformers can read many formats (from_pretrained), and writes "
            "such a folder (save_pretrained)"
        )
    return path


def weight_files(path: Path) -> list[Path]:
    """The safetensors files of a model in the folder `path`, whatever they are called."""
    return [file for file in sorted(path.glob("*.safetensors")) if not file.name.startswith(NO_MODEL)]


def unsupported_kind(config: Path) -> str:
    """The beginning of a message if the file `config`, a config.json, describes a model with vision, which nobody can serve
    here; else empty."""
    has_vision = any("vision" in field for field in read_object(config) or {})
    return "is a model with vision, which is not supported; " if has_vision else ""


def pointer_problem(files: list[Path]) -> str:
    """Which of these `files` of a folder are git-LFS pointers, and what to do then; empty if none is."""
    pointers = [file.name for file in files if _is_pointer(file)]
    if not pointers:
        return ""
    what = "are git-LFS pointers, not the files" if len(pointers) > 1 else "is a git-LFS pointer, not the file itself"
    return f"{', '.join(pointers)} {what}; install git-lfs and run in that folder: git lfs pull"


def _is_pointer(file: Path) -> bool:
    if file.suffix not in (".json", ".safetensors", ".model", ".jinja", ".txt", *PICKLED) or file.stat().st_size > 1024:
        return False
    return file.read_bytes().startswith(LFS_POINTER)


def _is_of_weights(file: Path) -> bool:
    """False for files that a trainer leaves beside a checkpoint, such as its arguments and its optimizer's state."""
    return not file.name.startswith(("training_args", "optimizer", "scheduler", "rng_state"))
