"""The GRPO loss against hand-computed numbers, and the gradient of each of its terms (TRN-02, TRN-04)."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from roles.rl.grpo import LossTerms, LossWeights, compute_entropy, compute_kl, compute_loss
from roles.rl.objectives import Tokens, two_sided

LN2 = math.log(2)


def make_loss(
    ratios: list[list[float]],
    advantages: list[float],
    *,
    mask: list[list[float]] | None = None,
    weights: LossWeights | None = None,
    reference: Tensor | None = None,
    entropy: Tensor | None = None,
) -> tuple[LossTerms, Tensor]:
    """A loss over tokens of the given importance ratios, all of them unmasked, and the leaf it is a function of."""
    old = torch.full((len(ratios), len(ratios[0])), -1.0, dtype=torch.float64)
    new = (old + torch.tensor(ratios, dtype=torch.float64).log()).requires_grad_()
    masks = torch.ones_like(old) if mask is None else torch.tensor(mask, dtype=torch.float64)
    given = Tokens(
        new=new.flatten(),
        old=old.flatten(),
        behaviour=None,
        advantages=torch.tensor(advantages, dtype=torch.float64).repeat_interleave(len(ratios[0])),
        sequence=torch.arange(len(ratios)).repeat_interleave(len(ratios[0])),
        sequences=len(ratios),
        mask=masks.flatten(),
    )
    terms = compute_loss(
        given,
        entropy=torch.zeros_like(old).flatten() if entropy is None else entropy.flatten(),
        tokens=int(masks.sum()),
        weights=weights or LossWeights(),
        reference=None if reference is None else reference.flatten(),
    )
    return terms, new


def gradient(loss: Tensor, leaf: Tensor) -> list[float]:
    (grad,) = torch.autograd.grad(loss, leaf)
    return [float(value) for value in grad.flatten()]


def finite_difference(function: Callable[[Tensor], Tensor], at: Tensor, step: float = 1e-6) -> list[float]:
    slopes = []
    for index in range(at.numel()):
        shift = torch.zeros_like(at)
        shift.view(-1)[index] = step
        slopes.append(float(function(at + shift) - function(at - shift)) / (2 * step))
    return slopes


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [
        (1.0, 1.0, -1.0),
        (1.1, 1.0, -1.1),
        (1.5, 1.0, -1.2),  # clipped high: no more to gain
        (0.5, 1.0, -0.5),  # a good token made rarer: not clipped, to be brought back
        (0.5, -1.0, 0.8),  # clipped low
        (1.5, -1.0, 1.5),  # a bad token made likelier: not clipped, to be brought back
        (3.9, -2.0, 7.8),
        (4.1, -2.0, 8.0),  # delta
        (100.0, -1.0, 4.0),  # where one-sided clipping gives 100
        (100.0, 1.0, -1.2),
        (2.0, 0.0, 0.0),
    ],
)
def test_two_sided__worked_values(ratio: float, advantage: float, loss: float) -> None:
    value = two_sided(torch.tensor(ratio), torch.tensor(advantage), eps=0.2, delta=4.0)
    assert value.item() == pytest.approx(loss)


@pytest.mark.parametrize("ratio", [0.01, 0.5, 0.79, 0.81, 1.0, 1.19, 1.21, 3.9, 4.1, 100.0])
@pytest.mark.parametrize("advantage", [-1.5, -0.3, 0.3, 1.5])
def test_two_sided__equals_the_reference_code(ratio: float, advantage: float) -> None:
    """The released form: c1 = clamp(r, 0, delta), c2 = clamp(c1, 1 - eps, 1 + eps), max(-c1 A, -c2 A)."""
    bounded = min(max(ratio, 0.0), 4.0)
    reference = max(-bounded * advantage, -min(max(bounded, 0.8), 1.2) * advantage)
    value = two_sided(torch.tensor(ratio), torch.tensor(advantage), eps=0.2, delta=4.0)
    assert value.item() == pytest.approx(reference)


def test_compute_loss__is_a_mean_over_tokens_not_over_completions() -> None:
    terms, _ = make_loss([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]], [1.0, -1.0], mask=[[1, 1, 1], [0, 0, 1]])
    assert terms.loss.item() == pytest.approx((-3 + 1) / 4)


def test_compute_loss__microbatches_add_up() -> None:
    whole, _ = make_loss([[1.1, 0.9], [0.7, 1.3]], [1.0, -1.0])
    halves = [make_loss([[1.1, 0.9]], [1.0])[0], make_loss([[0.7, 1.3]], [-1.0])[0]]
    # each half was divided by its own 2 tokens, the whole by 4
    assert sum(half.loss.item() for half in halves) / 2 == pytest.approx(whole.loss.item())


def test_compute_loss__padding_gives_no_gradient_whatever_it_holds() -> None:
    terms, new = make_loss([[math.inf, 1.0]], [1.0], mask=[[0, 1]])
    assert terms.loss.item() == pytest.approx(-1.0)
    assert gradient(terms.loss, new) == pytest.approx([0.0, -1.0])


def test_compute_loss__a_token_that_does_not_count_may_hold_anything() -> None:
    terms, _ = make_loss([[1.0, 1.0]], [1.0], mask=[[0, 1]], entropy=torch.tensor([[math.inf, 0.5]]))
    assert terms.entropy.item() == pytest.approx(0.5)


def test_compute_loss__trn_02_a_wild_token_is_bounded_by_delta() -> None:
    two_sided, new = make_loss([[100.0, 1.0]], [-1.0])
    assert gradient(two_sided.loss, new) == pytest.approx([0.0, 0.5])
    one_sided, new = make_loss([[100.0, 1.0]], [-1.0], weights=LossWeights(delta=None))
    assert gradient(one_sided.loss, new) == pytest.approx([50.0, 0.5])


def test_compute_loss__trn_04_policy_gradient_is_that_of_the_value() -> None:
    ratios = [[0.5, 0.9, 1.1, 1.5, 5.0]]
    for advantage in (1.3, -1.3):
        terms, new = make_loss(ratios, [advantage])

        def value(at: Tensor, advantage: float = advantage) -> Tensor:
            return two_sided((at + 1).exp(), torch.tensor(advantage), eps=0.2, delta=4.0).sum() / 5

        assert gradient(terms.loss, new) == pytest.approx(finite_difference(value, new.detach()), abs=1e-6)


def test_compute_kl__worked_value() -> None:
    new, reference = torch.tensor([-1.0, -1.0]), torch.tensor([-1.0 + LN2, -1.0])
    assert compute_kl(new, reference).tolist() == pytest.approx([2 - LN2 - 1, 0.0])


def test_compute_kl__bounded_where_the_policies_are_far_apart() -> None:
    assert compute_kl(torch.tensor(-1000.0), torch.tensor(0.0)).item() == pytest.approx(math.exp(10) - 11)


def test_compute_loss__trn_04_kl_has_a_gradient() -> None:
    """Built from frozen log-probabilities, as once released, it would be a constant: logged, but without effect."""
    reference = torch.tensor([[-1.0 + LN2, -1.5]], dtype=torch.float64)
    terms, new = make_loss([[1.0, 1.0]], [0.0], weights=LossWeights(kl_coef=0.1), reference=reference)
    slopes = gradient(terms.loss, new)
    assert slopes == pytest.approx([0.05 * (1 - 2), 0.05 * (1 - math.exp(-0.5))])
    assert slopes == pytest.approx(
        finite_difference(lambda at: 0.1 * compute_kl(at, reference).mean(), new.detach()), abs=1e-6
    )
    assert terms.kl.item() == pytest.approx(((1 - LN2) + (math.exp(-0.5) + 0.5 - 1)) / 2)


def test_compute_loss__kl_pulls_towards_the_reference() -> None:
    reference = torch.tensor([[-0.5]], dtype=torch.float64)
    terms, new = make_loss([[1.0]], [0.0], weights=LossWeights(kl_coef=1.0), reference=reference)
    assert gradient(terms.loss, new)[0] < 0  # descent raises new = -1.0 towards -0.5


def test_compute_entropy__worked_values() -> None:
    logits = torch.tensor([[0.0, 0.0], [math.log(3.0), 0.0], [100.0, 0.0]])
    expected = [LN2, -(0.75 * math.log(0.75) + 0.25 * math.log(0.25)), 0.0]
    assert compute_entropy(logits).tolist() == pytest.approx(expected, abs=1e-6)


def test_compute_loss__trn_04_entropy_has_a_gradient() -> None:
    logits = torch.tensor([[[1.0, 0.0, -1.0], [0.5, 0.2, 0.0]]], dtype=torch.float64, requires_grad=True)
    weights = LossWeights(entropy_coef=0.1)
    terms, _ = make_loss([[1.0, 1.0]], [0.0], weights=weights, entropy=compute_entropy(logits))
    slopes = gradient(terms.loss, logits)
    expected = finite_difference(lambda at: -0.1 * compute_entropy(at).mean(), logits.detach())
    assert slopes == pytest.approx(expected, abs=1e-7)
    assert slopes[0] > 0  # descent lowers the likeliest logit: the entropy term keeps the policy exploring


def test_compute_loss__counts_what_each_clip_stopped() -> None:
    terms, _ = make_loss([[0.5, 1.0, 1.5, 5.0], [0.5, 1.0, 1.5, 5.0]], [1.0, -1.0])
    assert terms.clipped_high.item() == pytest.approx(2 / 8)
    assert terms.clipped_low.item() == pytest.approx(1 / 8)
    assert terms.clipped_delta.item() == pytest.approx(1 / 8)


@pytest.mark.parametrize(("eps", "delta"), [(0.2, 1.2), (0.2, 1.0), (0.0, 4.0), (1.0, 4.0)])
def test_loss_weights__refuse_clips_that_contradict(eps: float, delta: float) -> None:
    with pytest.raises(ValueError, match="must"):
        LossWeights(eps=eps, delta=delta)
