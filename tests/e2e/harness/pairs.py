"""The cases of the default run: a part of each function's cases in which every pair of values of two parameters occurs.

A fault that needs one value of one parameter, or one value of each of two, is found in that part. One that needs three is found by
`--all` alone. The parametrization of the functions is the only source: a pair that no case has is not asked for.

A mark of a function, or of its module, chooses another part:

| mark | cases |
|---|---|
| none | every pair of values |
| `each_value` | each value of each parameter. For functions whose parameters do not act on each other |
| `each_value("name")` | the same for all functions of the module with this name together: each of them, and each value at one of them |
| `one_case` | the first. For contrasts, which show that a test can fail |
| `every_case` | all |
"""

from collections import Counter
from itertools import combinations

import pytest

PAIRS, EACH_VALUE, ONE_CASE = 2, 1, 0

# The number of a case among those of its function that are kept; cases of a full run have none.
TURN = pytest.StashKey[int]()


def covering(cases, strength=PAIRS):
    """The numbers of some cases, in their order, that have every combination of `strength` values that all of them have.

    `cases`: the values of each case by the names of the parameters. Equal cases give an equal choice: each further case is the one
    that adds the most combinations. Of several such cases it is the one whose values were used the least, and then the first.
    """
    combined = [combinations_of(case, strength) for case in cases]
    missing = set().union(*combined)
    uses, chosen = Counter(), set()
    while missing:
        best = max(range(len(cases)), key=lambda n: (len(combined[n] & missing), -sum(uses[value] for value in cases[n].items()), -n))
        chosen.add(best)
        uses.update(cases[best].items())
        missing -= combined[best]
    return sorted(chosen)


def combinations_of(case, strength):
    """All combinations of so many values of a case. A case with fewer parameters is one combination of all of them."""
    return {frozenset(some) for some in combinations(case.items(), min(strength, len(case)))}


def select(items):
    """Splits pytest's items into those of the default run and the others, both in their order."""
    groups = {}
    for item in items:
        groups.setdefault(group_of(item), []).append(item)
    kept = set()
    for group in groups.values():
        chosen = [group[n] for n in chosen_of(group)]
        for turn, item in enumerate(chosen):
            item.stash[TURN] = turn
        kept.update(chosen)
    return [item for item in items if item in kept], [item for item in items if item not in kept]


def function_of(item):
    return item.nodeid.partition("[")[0]


def group_of(item):
    """The function of a case, or the named group of functions."""
    mark = item.get_closest_marker("each_value")
    return (str(item.path), *mark.args) if mark and mark.args else function_of(item)


def chosen_of(group):
    """The numbers of the cases of one group that are kept."""
    if group[0].get_closest_marker("every_case"):
        return range(len(group))
    strength = EACH_VALUE if group[0].get_closest_marker("each_value") else PAIRS
    strength = ONE_CASE if group[0].get_closest_marker("one_case") else strength
    return covering([values_of(item) for item in group], strength)


def values_of(item):
    """The values of a case by the names of the parameters, as text: some have no hash. The function is one of them."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return {"": function_of(item), **{name: repr(value) for name, value in params.items()}}


def in_turns(values, item):
    """In a full run all values; else every second one, so that two cases of a function have all of them."""
    return list(values) if TURN not in item.stash else list(values)[item.stash[TURN] % 2 :: 2]


def names_cases(config):
    """True if the command line names cases, by `-k` or by a node ID with its parameters. These run, whatever the selection is."""
    return bool(config.option.keyword) or any("[" in argument for argument in config.args)
