"""The knapsack: against brute force, and its edges."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrole.errors import NothingMatchedError
from qrole.searching.allocate import Offer, front, under_size

_SIZES = st.integers(1, 40)
_ERRORS = st.integers(0, 40).map(float)


def _unit(pairs):
    return [Offer(i, size, error) for i, (size, error) in enumerate(pairs)]


def test_two_units_literal():
    offers = [_unit([(4, 10.0), (8, 1.0)]), _unit([(4, 3.0), (8, 2.0)])]
    assert [(c.candidates, c.nbytes, c.error) for c in front(offers)] == [
        ((0, 0), 8, 13.0),
        ((1, 0), 12, 4.0),
        ((1, 1), 16, 3.0),
    ]
    assert under_size(offers, 15).candidates == (1, 0)


def test_an_offer_under_the_hull_fills_what_is_left():
    offers = [_unit([(4, 10.0), (7, 6.0), (8, 1.0)])]
    assert under_size(offers, 7).candidates == (1,)


def test_nothing_fits():
    with pytest.raises(NothingMatchedError, match="smallest choice takes 4 bytes, 3 were allowed"):
        under_size([_unit([(4, 1.0)])], 3)


def test_unit_without_offers():
    with pytest.raises(NothingMatchedError, match="no candidate can be used"):
        front([[]])


@given(
    st.lists(st.lists(st.tuples(_SIZES, _ERRORS), min_size=1, max_size=3), min_size=1, max_size=4)
)
def test_front_falls_and_matches_brute_force_at_its_own_sizes(units):
    offers = [_unit(pairs) for pairs in units]
    choices = front(offers)
    assert [c.nbytes for c in choices] == sorted(c.nbytes for c in choices)
    assert all(a.error >= b.error for a, b in itertools.pairwise(choices))
    for choice in choices:
        best = min(
            sum(o.error for o in picked)
            for picked in itertools.product(*offers)
            if sum(o.nbytes for o in picked) <= choice.nbytes
        )
        assert choice.error == best


@given(
    st.lists(st.lists(st.tuples(_SIZES, _ERRORS), min_size=1, max_size=3), min_size=1, max_size=4),
    st.integers(1, 160),
)
def test_a_budget_is_kept_and_no_single_step_is_left(units, budget):
    offers = [_unit(pairs) for pairs in units]
    smallest = sum(min(o.nbytes for o in unit) for unit in offers)
    if smallest > budget:
        with pytest.raises(NothingMatchedError):
            under_size(offers, budget)
        return
    choice = under_size(offers, budget)
    assert choice.nbytes <= budget
    for i, unit in enumerate(offers):
        mine = unit[choice.candidates[i]]
        for offer in unit:
            fits = choice.nbytes - mine.nbytes + offer.nbytes <= budget
            assert not (fits and offer.error < mine.error)
