"""Groups to tensors: what is dropped, how rows are padded, how they are split."""

import pytest

from roles.rl.batch import (
    Row,
    compute_position_ids,
    count_all_tokens,
    count_tokens,
    is_usable,
    pad_rows,
    select_rows,
    split_microbatches,
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


def test_pad_rows__every_completion_ends_at_the_last_column() -> None:
    batch = pad_rows([Row((5, 6), (7, 8, 1), 1.0), Row((5,), (9, 1), -1.0)])
    assert batch.input_ids.tolist() == [[5, 6, 7, 8, 1], [0, 0, 5, 9, 1]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4], [0, 0, 0, 1, 2]]
    assert batch.targets.tolist() == [[7, 8, 1], [5, 9, 1]]
    assert batch.mask.tolist() == [[1, 1, 1], [0, 1, 1]]  # the 5 is prompt
    assert batch.advantages.tolist() == [1.0, -1.0]


def test_compute_position_ids__follow_the_padding() -> None:
    mask = pad_rows([Row((5, 6), (7,), 0.0), Row((5,), (7,), 0.0)]).attention_mask
    assert compute_position_ids(mask).tolist() == [[0, 1, 2], [0, 0, 1]]


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


def test_split_microbatches__each_row_once_short_ones_together() -> None:
    chunks = split_microbatches(make_rows(10), 4)
    assert [len(chunk) for chunk in chunks] == [4, 4, 2]
    lengths = [len(row.completion) for chunk in chunks for row in chunk]
    assert lengths == sorted(lengths)
