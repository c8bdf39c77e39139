"""The selection of the default run's cases."""

from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import pairs
from harness.pairs import EACH_VALUE, ONE_CASE, PAIRS, TURN, covering, in_turns, names_cases, select

CLIENTS, SERVERS, CUTS, ERAS = "uvwxyz", "abcdefg", range(6), ["old", "new"]
FULL = [dict(client=c, server=s, cut=n, era=e) for c, s, n, e in product(CLIENTS, SERVERS, CUTS, ERAS)]
# Half of the servers and clients have one era, and one client survives no repeated cut.
POSSIBLE = [
    case
    for case in FULL
    if not (case["era"] == "new" and (case["server"] in "abc" or case["client"] in "uvw")) and (case["client"], case["cut"]) != ("z", 5)
]


def combined(cases, size):
    return {frozenset(some) for case in cases for some in combinations(case.items(), size)}


def chosen(cases, strength=PAIRS):
    return [cases[n] for n in covering(cases, strength)]


@pytest.mark.parametrize("cases", [FULL, POSSIBLE, FULL[:1], [{}]], ids=["full", "possible", "one", "none"])
@pytest.mark.parametrize("size", [PAIRS, EACH_VALUE, ONE_CASE])
def test_each_combination_that_some_case_has_occurs(size, cases):
    assert combined(chosen(cases, size), size) == combined(cases, size)


@pytest.mark.parametrize("cases", [FULL, POSSIBLE], ids=["full", "possible"])
def test_the_choice_is_small(cases):
    # The product of the two largest parameters is the least possible number.
    assert len(SERVERS) * len(CLIENTS) <= len(chosen(cases)) <= len(SERVERS) * len(CLIENTS) * 1.25
    assert len(chosen(cases, EACH_VALUE)) <= len(SERVERS) + 1
    assert chosen(cases, ONE_CASE) == cases[:1]


def test_the_choice_depends_on_the_cases_alone():
    again = [dict(reversed(case.items())) for case in POSSIBLE]
    assert covering(again) == covering(POSSIBLE) == sorted(set(covering(POSSIBLE)))


class Item:
    """As much of pytest's item as the selection uses."""

    def __init__(self, function, marks=(), **params):
        self.path = Path("cases/test_x.py")
        self.nodeid = f"cases/test_x.py::{function}[{'-'.join(map(str, params.values()))}]"
        self.callspec = SimpleNamespace(params=params)
        self.stash = pytest.Stash()
        self._marks = {mark.name: mark for mark in marks}

    def get_closest_marker(self, name):
        return self._marks.get(name)


def items(function, *marks):
    return [Item(function, marks, client=client, server={"name": server}) for client in "xyz" for server in "abc"]


def kept(*groups):
    return select([item for group in groups for item in group])[0]


def test_marks_choose_fewer_cases_or_all():
    mark = pytest.mark
    assert [len(kept(items("f", *marks))) for marks in ([], [mark.each_value.mark], [mark.one_case.mark])] == [9, 3, 1]
    assert len(kept(items("f", mark.each_value.mark, mark.every_case.mark))) == 9


def test_functions_of_a_group_share_the_values():
    mark = pytest.mark.each_value("group").mark
    names = [item.nodeid.split("::")[1].partition("[")[0] for item in kept(items("f", mark), items("g", mark), items("h"))]
    assert {name: names.count(name) for name in "fgh"} == {"f": 2, "g": 1, "h": 9}


def test_nothing_is_lost_and_the_order_stays():
    all_items = items("f", pytest.mark.each_value.mark) + items("g")
    chosen_items, others = select(all_items)
    assert sorted([*chosen_items, *others], key=all_items.index) == all_items
    assert chosen_items == [item for item in all_items if item in chosen_items]


def test_two_cases_have_all_clients_between_them():
    first, second, *_ = kept(items("f"))
    assert (in_turns("uvwxy", first), in_turns("uvwxy", second)) == (["u", "w", "y"], ["v", "x"])
    assert in_turns("uvwxy", Item("f")) == list("uvwxy")
    assert first.stash[TURN] == 0


@pytest.mark.parametrize(
    "keyword, argument, named",
    [("", "cases", False), ("", "test_x.py::test_f", False), ("rmcp", "cases", True), ("", "test_x.py::test_f[a-b]", True)],
)
def test_cases_that_the_command_line_names_are_not_deselected(keyword, argument, named):
    assert names_cases(SimpleNamespace(option=SimpleNamespace(keyword=keyword), args=[argument])) == named


def test_the_docs_of_the_marks_are_complete():
    assert all(f"`{mark}" in pairs.__doc__ for mark in ("each_value", "one_case", "every_case"))
