"""What an export needs to restore the original of an imported run bit for bit.

PRETRAINED in the run folder has origin.json (model_type, ties, dtypes, config.json) and model.safetensors, the tensors
that the model does not read. `folder.start_task` copies it to the runs that are initialized from the run.
"""

from __future__ import annotations

import json
from pathlib import Path

from s2sjax import interop
from s2sjax.config import require
from s2sjax.data.text.pretrained import PretrainedVocabulary
from s2sjax.errors import UserError
from s2sjax.files import local_copy, replace_file
from s2sjax.interop import safetensors_files
from s2sjax.runs.folder import PRETRAINED

FILE = "origin.json"


def keep(there: Path, origin: interop.Origin) -> None:
    """Writes what an export needs to restore the original bit for bit."""
    page = {name: getattr(origin, name) for name in ("model_type", "hf_config", "tie", "dtypes")}
    if origin.unused:
        safetensors_files.write(there, origin.unused)
    there.mkdir(exist_ok=True)
    replace_file(there / FILE, json.dumps(page, indent=1) + "\n")


def check(origin: interop.Origin | None, vocabulary: object, there: Path) -> None:
    """Raises a UserError for a run that has the tokenizer of an import, and not what an export of it needs."""
    require(
        origin is not None or not isinstance(vocabulary, PretrainedVocabulary),
        f"{there} has no folder {PRETRAINED}, which keeps what an export needs: import the model again (earlier "
        "versions did not keep it), and train from it",
    )


def read(there: Path) -> interop.Origin | None:
    """Reads what `keep` has written, which `--init` copies from run to run; None if there is nothing."""
    if not (there / FILE).is_file():
        return None
    with local_copy(there) as local:
        tensors = safetensors_files.read(local) if any(local.glob("*.safetensors")) else {}
        unused = {name: tensors[name] for name in tensors}
    try:
        return interop.Origin(**json.loads((there / FILE).read_text(encoding="utf-8")), unused=unused)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{there / FILE} cannot be read ({error}): copy it again from the original run") from None
