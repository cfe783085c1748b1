"""Which rows share a pass: none is lost, no pass is too long, prompts are computed once."""

from roles.rl.batch import Row
from roles.rl.packing import count_room, pack_rows, part_rows


def make_rows(count: int) -> list[Row]:
    """Each with a prompt of its own."""
    return [Row((3 + index,), (4,) * (index % 7 + 1), float(index)) for index in range(count)]


def make_family(count: int, *, prompt: int = 20, completion: int = 4) -> list[Row]:
    """Rows with one prompt."""
    return [Row((3,) * prompt, (number,) * completion, 1.0) for number in range(count)]


def test_pack_rows__each_row_once_within_the_capacity_and_level() -> None:
    rows = make_rows(40)
    bins = pack_rows(rows, capacity=24)
    assert sorted(row for own in bins for row in own) == sorted(rows)
    loads = [sum(row.length for row in own) for own in bins]
    assert max(loads) <= 24
    assert max(loads) - min(loads) <= 2


def test_pack_rows__equally_many_for_each_rank() -> None:
    assert [len(pack_rows(make_rows(5), capacity=16, multiple=ranks)) for ranks in (1, 2, 4)] == [2, 2, 4]
    assert pack_rows(make_rows(1), capacity=16, multiple=2)[1] == []


def test_pack_rows__rows_of_one_length_and_one_that_is_too_long() -> None:
    same = [Row((number,), (4,) * 7, 1.0) for number in range(6)]
    assert [len(own) for own in pack_rows(same, capacity=16)] == [2, 2, 2]
    bins = pack_rows([*same, Row((3,), (4,) * 99, 1.0)], capacity=16)
    assert len(bins) == 2  # the long row's bin sets the room: not a pass for each row


def test_pack_rows__no_more_bins_than_rows() -> None:
    assert len(pack_rows([Row((number,), (4,) * 7, 1.0) for number in range(6)], capacity=1)) == 6


def test_part_rows__each_row_alone_and_equally_many_for_each_rank() -> None:
    assert [len(own) for own in part_rows(make_rows(5), multiple=4)] == [1, 1, 1, 1, 1, 0, 0, 0]


def test_pack_rows__those_with_one_prompt_stay_together_and_take_its_room_once() -> None:
    rows = [*make_family(8), *make_rows(3)]
    assert count_room(make_family(8)) == 20 + 8 * 4
    bins = pack_rows(rows, capacity=52)
    assert sorted(len(own) for own in bins) == [3, 8]
    assert pack_rows(rows, capacity=52, shares=False) != bins
    assert len(pack_rows(rows, capacity=52, shares=False)) == 4  # 8 rows of 24 tokens, two in a pass


def test_pack_rows__a_family_that_is_too_long_for_one_pass_is_split() -> None:
    bins = pack_rows(make_family(8), capacity=40)
    assert sorted(row for own in bins for row in own) == make_family(8)
    assert [count_room(own) for own in bins] == [36, 36]


def test_pack_rows__no_rank_goes_without_while_there_are_rows() -> None:
    assert [len(own) for own in pack_rows(make_family(8, prompt=1000), capacity=2000, multiple=4)] == [2, 2, 2, 2]
