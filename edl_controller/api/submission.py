"""PURE: text from a user -> TrainingJobs. Strict, unlike the reading of stored objects (`kinds.Kind.decode`)."""

from __future__ import annotations

from typing import Any

from edl_controller.api import documents, strictness
from edl_controller.api.aliases import with_classic_names
from edl_controller.api.kinds import TRAINING_JOBS, without_nulls
from edl_controller.api.settings import Settings
from edl_controller.api.v1 import TrainingJob
from edl_controller.api.validation import validate
from edl_controller.errors import Fault, InvalidTrainingJob

# What a stored object carries and a new one does not: a job that was printed can be submitted again.
_SERVER_FIELDS = frozenset(
    {
        *("uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"),
        *("deletionGracePeriodSeconds", "managedFields", "selfLink"),
    }
)


def read(text: str | bytes, settings: Settings = Settings()) -> list[TrainingJob]:  # noqa: B008 - frozen
    """Return the jobs of a text: YAML or JSON, one or several documents.

    Args:
        text: what the user wrote.
        settings: what this installation allows.

    Returns:
        At least one job, as written (defaults are not filled in), without status.

    Raises:
        InvalidTrainingJob: all faults of all documents; where there are several, the path begins with ``document N``.
    """
    found = [one for document in documents.load(text) for one in _items(document)]
    if not found:
        raise InvalidTrainingJob([Fault("", "Required", "there is no document in it")])
    jobs: list[TrainingJob] = []
    faults: list[Fault] = []
    for number, document in enumerate(found, start=1):
        try:
            jobs.append(read_document(document, settings))
        except InvalidTrainingJob as error:
            place = f"document {number}: " if len(found) > 1 else ""
            faults += [fault._replace(path=f"{place}{fault.path}") for fault in error.faults]
    names = [(job.metadata.namespace, job.metadata.name) for job in jobs if job.metadata.name]
    for _, name in {pair for pair in names if names.count(pair) > 1}:
        faults.append(Fault("metadata.name", "Duplicate", f"two documents are called {name}"))
    if faults:
        raise InvalidTrainingJob(faults)
    return jobs


def _items(document: Any) -> list[Any]:
    """Return what is in a list of objects, as commands that get several of them print it; else the document itself."""
    if isinstance(document, dict) and document.get("kind") in ("List", f"{TRAINING_JOBS.name}List"):
        items = document.get("items")
        return items if isinstance(items, list) else []
    return [document]


def read_document(document: Any, settings: Settings = Settings()) -> TrainingJob:  # noqa: B008 - frozen
    """Return the job of one document of JSON values.

    Raises:
        InvalidTrainingJob: all its faults: unknown fields and wrong types first, and where there are none, the rules'.
    """
    if not isinstance(document, dict):
        raise InvalidTrainingJob([Fault("", "TypeInvalid", "a TrainingJob is a map of fields")])
    faults = [
        Fault(key, "Required" if document.get(key) is None else "NotSupported", f"it must be {wanted}")
        for key, wanted in (("apiVersion", TRAINING_JOBS.api_version), ("kind", TRAINING_JOBS.name))
        if document.get(key) != wanted
    ]
    if faults:
        raise InvalidTrainingJob(faults)
    meta = document.get("metadata")
    if isinstance(meta, dict):
        document = {**document, "metadata": {key: meta[key] for key in meta if key not in _SERVER_FIELDS}}
    document, faults = with_classic_names({key: item for key, item in document.items() if key != "status"})
    faults += strictness.check(document, TrainingJob, known=frozenset({"apiVersion", "kind"}))
    if faults:
        raise InvalidTrainingJob(faults)
    job = TRAINING_JOBS.from_json(without_nulls(document))
    if found := validate(job, settings):
        raise InvalidTrainingJob(found)
    return job
