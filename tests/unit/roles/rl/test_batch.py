"""From groups to tensors: what is dropped, how rows are padded and split."""

import pytest

from roles.rl.batch import (
    Row,
    build_batch,
    count_all_tokens,
    count_tokens,
    is_usable,
    select_rows,
    split_minibatches,
)
from tests.unit.roles.rl.groups import make_group


def make_rows(count: int) -> list[Row]:
    return [Row((3,), (4,) * (index % 7 + 1), float(index)) for index in range(count)]


@pytest.mark.parametrize(
    "spoiled",
    [
        {"prompt": ()},
        {"completions": ()},
        {"completions": ((1,), (), (1,), (1,))},
        {"rewards": (1.0, 0.0)},
    ],
)
def test_training_group__refuse_parts_that_do_not_fit(spoiled: dict[str, tuple[()]]) -> None:
    with pytest.raises(ValueError, match=r"a group needs|completions but"):
        make_group(**spoiled)  # type: ignore[arg-type]


def test_select_rows__a_group_that_agrees_is_dropped() -> None:
    rows = select_rows([make_group(rewards=(1.0,) * 4), make_group(), make_group(rewards=(0.0,) * 4)])
    assert [row.completion for row in rows] == list(make_group().completions)
    assert [round(row.advantage, 3) for row in rows] == [0.866, -0.866, -0.866, 0.866]


def test_is_usable__counts_what_select_rows_keeps() -> None:
    assert is_usable(make_group())
    assert not is_usable(make_group(rewards=(0.1, 0.1, 0.1, 0.1)))


def test_count_tokens__whole_groups_and_rows() -> None:
    groups = [make_group(), make_group(rewards=(0.0,) * 4)]
    assert count_all_tokens(groups) == 34
    assert count_tokens(select_rows(groups)) == 17


def test_build_batch__rows_behind_each_other_without_padding() -> None:
    batch = build_batch([Row((5, 6), (7, 8, 1), 1.0), Row((5,), (9, 1), -1.0)])
    assert batch.input_ids.tolist() == [[5, 6, 7, 8, 1, 5, 9, 1]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4, 0, 1, 2]]
    assert (batch.bounds, batch.stems, batch.sequences) == ((0, 5, 8), (None, None), 2)
    assert batch.places.tolist() == [1, 2, 3, 5, 6]  # where a completion token is predicted
    assert batch.targets.tolist() == [7, 8, 1, 9, 1]
    assert batch.sequence.tolist() == [0, 0, 0, 1, 1]
    assert batch.advantages.tolist() == [1.0, 1.0, 1.0, -1.0, -1.0]
    assert batch.mask.tolist() == [1.0] * 5


def test_build_batch__rows_with_one_prompt_hold_it_once() -> None:
    batch = build_batch([Row((5, 6), (7, 8, 1), 1.0), Row((5, 6), (9, 1), -1.0), Row((5,), (3,), 0.5)])
    assert batch.input_ids.tolist() == [[5, 6, 7, 8, 1, 9, 1, 5, 3]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4, 2, 3, 0, 1]]
    assert (batch.bounds, batch.stems, batch.sequences) == ((0, 2, 5, 7, 9), (None, 0, 0, None), 3)
    assert batch.places.tolist() == [1, 2, 3, 1, 5, 7]  # the prompt's last token predicts the first of both
    assert batch.targets.tolist() == [7, 8, 1, 9, 1, 3]
    assert batch.sequence.tolist() == [0, 0, 0, 1, 1, 2]


def test_build_batch__a_model_that_cannot_share_gets_whole_rows() -> None:
    batch = build_batch([Row((5, 6), (7, 1), 1.0), Row((5, 6), (9,), -1.0)], shares=False)
    assert batch.input_ids.tolist() == [[5, 6, 7, 1, 5, 6, 9]]
    assert (batch.bounds, batch.stems) == ((0, 4, 7), (None, None))
    assert batch.places.tolist() == [1, 2, 5]


def test_build_batch__what_a_tool_said_is_not_learned() -> None:
    batch = build_batch([Row((5,), (7, 8, 9, 1), 1.0, (1, 2, 1))])
    assert batch.targets.tolist() == [7, 1]
    assert batch.places.tolist() == [0, 3]


def test_split_minibatches__each_row_once_and_sizes_level() -> None:
    parts = split_minibatches(make_rows(21), parts=4, seed=3)
    assert sorted(row for part in parts for row in part) == sorted(make_rows(21))
    assert [len(part) for part in parts] == [6, 5, 5, 5]


def test_split_minibatches__order_is_the_seeds() -> None:
    assert split_minibatches(make_rows(20), parts=2, seed=3) == split_minibatches(make_rows(20), parts=2, seed=3)
    assert split_minibatches(make_rows(20), parts=2, seed=3) != split_minibatches(make_rows(20), parts=2, seed=4)


def test_split_minibatches__fewer_rows_than_parts() -> None:
    assert [len(part) for part in split_minibatches(make_rows(2), parts=8, seed=0)] == [1, 1]
    assert split_minibatches([], parts=8, seed=0) == []
