"""Random calls on the ranks of a job; see ``runner``."""

from __future__ import annotations

from typing import Any

from fuscoc_runtime import Shuffle
from tests.calls import runner

TIGHT = 16
"""Slots of the shuffle that has too few for crowded batches."""


def random_calls(group: Any, artifact: str, seed: int, num_calls: int) -> list[str]:
    """What was wrong on this rank."""
    subjects = open_subjects(group, artifact)
    run = runner.Runner(subjects, seed)
    run.run(num_calls)
    for subject in subjects:
        subject.shuffle.close()
    return run.wrong


def open_subjects(group: Any, artifact: str, **options: Any) -> list[runner.Subject]:
    """Two shuffles of the same spec: one with room for everything, one without."""
    subjects = []
    for capacity in (None, TIGHT):
        shuffle = Shuffle(
            artifact,
            group=group,
            max_sources=runner.MOST,
            capacity=capacity,
            num_handles=runner.NUM_HANDLES,
            **options,
        )
        subjects.append(runner.Subject(shuffle, shuffle.engine.limits.capacity))
    return subjects
