"""Relations that the other passes could not lower are refused, each with its reason."""

from __future__ import annotations

import pytest

from fuscoc.dialect.base import PassError
from fuscoc.dialect.builder import build_module
from fuscoc.lang.check import check
from fuscoc.lang.checked import CheckedShuffle
from fuscoc.passes import check_relations
from tests import specs
from tests.dialect.support import edited, fresh_context, parse

MOE, VIT = specs.moe(), specs.vit_patches()
(EVERYWHERE,) = check(specs.example("all_gather.fsc"))


def text_of(checked: CheckedShuffle) -> str:
    with fresh_context():
        return str(build_module(checked))


def reason(text: str) -> str:
    """Why the pass refuses ``text``, which verifies; empty if it does not."""
    with fresh_context():
        module = parse(text)
        before = str(module)
        try:
            check_relations.run(module)
        except PassError as error:
            return str(error)
        assert str(module) == before
    return ""


@pytest.mark.parametrize(
    "checked", [MOE, VIT, specs.moe(placement="table"), specs.vit_patches(channels_first=True)]
)
def test_examples_are_accepted(checked: CheckedShuffle) -> None:
    assert not reason(text_of(checked))


CASES = [
    (
        MOE,
        ('"fsc.domain"(%0, %c8_i64)', '"fsc.domain"(%arg0, %c8_i64)'),
        "'fsc.shuffle' op has an outermost extent that depends on an index or an input",
    ),
    (
        VIT,
        ('"fsc.relate"(%6, %12, %arg0,', '"fsc.relate"(%6, %12, %arg1,'),
        "'fsc.relate' op must subscript a ragged source with the outermost index",
    ),
    (
        MOE,
        ('"fsc.relate"(%3, %2, %arg0)', '"fsc.relate"(%3, %2, %arg1)'),
        "'fsc.relate' op has a start 0 that differs between copies of a segment",
    ),
    (
        VIT,
        ("%2, %3, %0, %1) {lengths", "%2, %3, %c2_i64, %1) {lengths"),
        "'fsc.relate' op has a block that leaves dim 1",
    ),
    (
        VIT,
        ("%2, %3, %0, %1) {lengths", "%2, %3, %0, %arg1) {lengths"),
        "'fsc.relate' op has a dim 2 that depends on an inner index",
    ),
    (
        VIT,
        ('"fsc.domain"(%5,', '"fsc.domain"(%3,'),
        "'fsc.domain' op counts other cells than its source's inner dims",
    ),
    (
        MOE,
        ('"fsc.relate"(%3, %2,', '"fsc.relate"(%3, %arg1,'),
        "'fsc.relate' op must send a key to its owner by @spec.by_expert.place",
    ),
    (
        EVERYWHERE,
        ('kind = "sum"', 'kind = "copy"'),
        "'fsc.combine' op would copy a row of every rank to one place",
    ),
    (
        MOE,
        ('kind = "sum", weight = @spec.topk_weights', 'kind = "copy"'),
        "'fsc.combine' op would copy 8 rows to one place",
    ),
    (
        MOE,
        ("type = tensor<?x8xf32>", "type = tensor<?x8xi32>"),
        "'fsc.combine' op must weigh by floating-point factors",
    ),
    (
        VIT,
        ('kind = "copy"', 'kind = "sum"'),
        "'fsc.combine' op must not sum field 'pixels' of u8",
    ),
]


def test_what_looks_extents_up_is_ragged() -> None:
    sizes = "operandSegmentSizes = array<i32:"
    moe = f'"fsc.domain"(%0, %c8_i64) {{{sizes} 0, 2>}} : (i64, '
    counted = f'"fsc.domain"(%c8_i64, %0, %c8_i64) {{{sizes} 1, 2>}} : (i64, i64, '
    text = edited(text_of(MOE), (moe, counted), ("ragged = 0", "ragged = 1"))
    assert reason(text) == "'fsc.shuffle' op does not look extents up"
    vit = f'"fsc.domain"(%5, %0, %2, %4) {{{sizes} 1, 3>}} : (i64, '
    alike = f'"fsc.domain"(%0, %2, %4) {{{sizes} 0, 3>}} : ('
    text = edited(text_of(VIT), (vit, alike), ("ragged = 1", "ragged = 0"))
    assert reason(text) == "'fsc.shuffle' op looks extents up"


@pytest.mark.parametrize(("checked", "edit", "why"), CASES, ids=[why for *_, why in CASES])
def test_refused(checked: CheckedShuffle, edit: tuple[str, str], why: str) -> None:
    assert reason(edited(text_of(checked), edit)) == why


def test_only_segments_that_come_back_have_to_be_apart() -> None:
    combine = next(line for line in text_of(VIT).splitlines() if '"fsc.combine"' in line)
    apart = ('"fsc.relate"', '"fsc.apart"() : () -> ()\n    "fsc.relate"')
    text = edited(text_of(VIT), apart)
    assert not reason(text)
    alone = "'fsc.shuffle' op needs segments apart, which do not come back"
    assert reason(edited(text, (combine, ""))) == alone
