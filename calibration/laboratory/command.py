"""What `simserve validate` uses from here: the measurements of a folder, the model of errors, the accuracy page."""

from __future__ import annotations

from pathlib import Path

from calibration.laboratory.fits.operator_errors import operator_errors
from calibration.laboratory.fits.speculation_fit import GOLDEN_FILE
from calibration.laboratory.fits.speculation_report import length_summary
from calibration.laboratory.scoring import error_model
from calibration.laboratory.scoring.accuracy import accuracy_page
from calibration.laboratory.scoring.unseen_page import unseen_page
from calibration.laboratory.sources import read_memory_logs, read_points
from simserve.planner.measured.reports import UNSEEN, read_unseen
from simserve.planner.validation.validate import Validation, replay
from simserve.profiles.expected_errors import ErrorModel

__all__ = ["read_memory_logs", "read_points", "write_accuracy", "write_error_model"]


def write_error_model(result: Validation, file: Path, date: str, jobs: int) -> ErrorModel:
    """Write and return the model of errors, which also uses a replay of the unseen reports.

    Args:
        result: Validation of every available source.
        file: File to write.
        date: Date of the model.
        jobs: Worker processes.

    Raises:
        InputError: There are too few sources.
    """
    predictions = result.predictions
    if not any(each.point.source == UNSEEN for each in predictions):
        predictions += replay(read_unseen(), jobs=jobs).predictions
    learnt = error_model.learn(predictions, date)
    model = learnt.model_copy(update={"attainable": error_model.attainable(predictions, learnt)})
    error_model.write_error_model(model, file)
    return model


def write_accuracy(
    result: Validation, file: Path, date: str, *, data: Path | None, is_exam: bool, model: ErrorModel | None
) -> None:
    """Write the error tables as Markdown, with the operators and acceptance lengths whose tables are in the folder.

    Args:
        result: The validation.
        file: File to write.
        date: Date of the page.
        data: Folder of measurements; None: only what ships.
        is_exam: Whether only the unseen reports were requested, which have a page of their own.
        model: Model of errors of uncalibrated servers; None: the one that ships with the package.
    """
    page = unseen_page(result, date) if is_exam else _accuracy_page(result, date, data, model)
    file.write_text(page, encoding="utf-8")


def _accuracy_page(result: Validation, date: str, data: Path | None, model: ErrorModel | None) -> str:
    folders = [] if data is None else [data, data / "measured", data / "kernels", data.parent / "kernels"]
    kernels = next((each for each in folders if (each / "aiconfigurator").is_dir()), None)
    lengths = next((each for each in folders if (each / GOLDEN_FILE).is_file()), None)
    return accuracy_page(
        result,
        date,
        operators=() if kernels is None else operator_errors(kernels),
        acceptance=None if lengths is None else length_summary(lengths),
        model=model,
    )
