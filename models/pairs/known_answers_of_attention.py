"""Known answers of attention: retrieval by a key, copying by an induction head, and subject–verb agreement.

The models are those of `faithcheck.models.networks.hand_built_attention`: a softmax is a choice, of derivative 0.
Let m be the number that the last row finds, at token t. What a family of explainers gives:

* *Gradients at x*, and CP-LRP: a choice is a constant, so that t gets m, and the tokens that led there get nothing.
* *AttnLRP* and block-wise LRP: the product AV gives half to the values, and Eq. 5 (arXiv 2510.18810) passes nothing on
  from A to the logits: t gets ½m, and the rest is lost.
* *Integrated Gradients*: at αx the row finds αm once α is so large that a key fits, and then t has the slope m. Where
  the choice changes, the output jumps, and no node of the quadrature falls on a jump.
* *Leave-One-Out*: every token without which the choice is another one gets the whole difference.
* *Attention Rollout*, with ½A + ½I a layer, read at the last row: ½ to t and ½ to the last token; with a head before
  that reads the previous token, ¼ to these two and to the tokens before them.
"""

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case
from faithcheck.models.cases import generator
from faithcheck.models.closed_forms import quadrature
from faithcheck.models.known_answer import Map, known_answer, right_of, wrong_of
from faithcheck.models.networks.hand_built_attention import LARGE, SELF, HandBuilt, Head, to_itself, to_the_previous
from faithcheck.models.pair import MakeCase
from faithcheck.models.pairs.known_answers import GATES

GRADIENTS = f"gradient_x_input {GATES} grouped_mask_gate cplrp"
HALVES = "attnlrp blockwise_lrp"
ARRAS = "Arras et al. 2025, arXiv 2502.15886"
A_CONSTANT = "a choice has the derivative 0, so that the token that it finds gets everything"
HALF_IS_LOST = "half to the values; a choice passes nothing on to its logits"
TOKENS = 5


def sentences_of(rows: Tensor, numbers: slice) -> MakeCase:
    """A pair's ``case``: these tokens, with a random number in place of each 1 in the coordinates ``numbers``."""

    def case(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
        inputs = rows.clone().double()
        drawn = torch.randn(inputs.shape, dtype=torch.float64, generator=generator(seed))
        inputs[:, :, numbers] *= drawn[:, :, numbers]
        inputs = inputs.to(device, dtype)
        batch, tokens, _ = inputs.shape
        last = torch.full((batch,), tokens - 1, device=device)
        target = torch.zeros_like(last)
        return Case(inputs, target, torch.zeros_like(inputs), forward_arguments={"last": last})

    return case


def at(tokens: Tensor, *values: tuple[int, Tensor]) -> Tensor:
    """These values ``(batch,)`` at these tokens, and 0 at the others, ``(batch, tokens)``."""
    result = torch.zeros(tokens.shape[:2]).to(tokens)
    for token, value in values:
        result[:, token] += value
    return result


def along_the_path(given: Map, found_from: float) -> Map:
    """What Integrated Gradients gives: this map, times the share of nodes, by weight, above α = ``found_from``."""

    def integrated(x: Tensor) -> Tensor:
        return quadrature(lambda alpha: given(x) * (alpha > found_from))

    return integrated


def rollout_of_two_heads(found: int) -> Map:
    """Attention Rollout where the first head reads the previous token and the second one finds a token."""

    def rollout(x: Tensor) -> Tensor:
        quarter = torch.full_like(x[:, 0, 0], 1 / 4)
        return at(x, *((token, quarter) for token in (TOKENS - 1, TOKENS - 2, found, found - 1)))

    return rollout


# --- retrieval --------------------------------------------------------------------------------------------------------

KEYS = 3
VALUE, FOUND = 2 * KEYS, 2 * KEYS + 1
"""Coordinates: a key in 0…2, the key that is asked for in 3…5, a value, and what the head finds."""


def questions() -> Tensor:
    """Three questions: four tokens with values, the last three of them with keys, and a token that asks for a key."""
    rows = torch.zeros(KEYS, TOKENS, FOUND + 1)
    rows[:, : TOKENS - 1, VALUE] = 1
    for key in range(KEYS):
        rows[:, key + 1, key] = 1
        rows[key, -1, KEYS + key] = 1
    return rows


def fitting(x: Tensor) -> Tensor:
    """1 at the token whose key is asked for, ``(batch, tokens)``."""
    return (x[..., :KEYS] * x[:, -1:, KEYS : 2 * KEYS]).sum(2)


def retrieved(share: float, of_question: float = 0.0) -> Map:
    """This share of m at the token whose key is asked for, and another one at the token that asks."""

    def given(x: Tensor) -> Tensor:
        found = fitting(x) * x[..., VALUE]
        return share * found + at(x, (TOKENS - 1, of_question * found.sum(1)))

    return given


def half_each(x: Tensor) -> Tensor:
    return (fitting(x) + at(x, (TOKENS - 1, torch.ones_like(x[:, 0, 0])))) / 2


@known_answer(
    "retrieval",
    sentences_of(questions(), slice(VALUE, FOUND)),
    right=retrieved(1 / 2, 1 / 2),
    why="m needs the token with the key and the token that asks for it, which share it; no other value is ever read",
    cite="Olsson et al. 2022, arXiv 2209.11895, for heads that match; derived here",
    expected={
        **wrong_of(GRADIENTS, retrieved(1), A_CONSTANT),
        **wrong_of(HALVES, retrieved(1 / 2), HALF_IS_LOST),
        **wrong_of(
            "integrated_gradients",
            along_the_path(retrieved(1), (SELF / LARGE) ** 0.5),
            "query and key grow together: it is found from α² = ¼ on, by a jump that no node sees",
        ),
        **wrong_of("loo", retrieved(1, 1), "without either nothing is found: both get m"),
        **wrong_of("attention_rollout", half_each, "the right tokens, and ½ each whatever is found there"),
    },
)
def retrieval() -> nn.Module:
    """One head: the last token asks for a key, and the output is the value of the token that has it."""
    query = {(key, KEYS + key): LARGE for key in range(KEYS)}
    key = {(key, key): 1.0 for key in range(KEYS)}
    head = Head(FOUND + 1, query, key, {(FOUND, VALUE): 1.0}, to_itself(TOKENS))
    return HandBuilt([head], slice(FOUND, FOUND + 1))


# --- induction --------------------------------------------------------------------------------------------------------

WORDS = 4
FIRST, COPIED = 1, 2
"""In C A B D A: where A stands first, and B, which is copied after the second A."""


def repeated_word() -> Tensor:
    """C A B D A: a word in coordinates 0…3; the word before it and the copied word follow."""
    rows = torch.zeros(1, TOKENS, 3 * WORDS)
    for token, word in enumerate((2, 0, 1, 3, 0)):
        rows[:, token, word] = 1
    return rows


def amount(x: Tensor) -> Tensor:
    return x[:, COPIED, 1]


def copied(share: float, of_others: float = 0.0) -> Map:
    """This share of m at B, and another one at both A."""
    tokens = ((COPIED, share), (FIRST, of_others), (TOKENS - 1, of_others))
    return lambda x: at(x, *((token, part * amount(x)) for token, part in tokens))


@known_answer(
    "induction",
    sentences_of(repeated_word(), slice(1, 2)),
    right=copied(1 / 3, 1 / 3),
    why="B is copied with A before it and A at the end, and without any of the three nothing is: they share m",
    cite="Olsson et al. 2022, arXiv 2209.11895",
    expected={
        **wrong_of(GRADIENTS, copied(1), A_CONSTANT),
        **wrong_of(HALVES, copied(1 / 2), HALF_IS_LOST),
        **wrong_of(
            "integrated_gradients",
            along_the_path(copied(1), (SELF / LARGE) ** 0.5),
            "query and key grow together: it is found from α² = ¼ on, by a jump that no node sees",
        ),
        **wrong_of("loo", copied(1, 1), "without any of the three nothing is copied: each gets m"),
        **wrong_of("attention_rollout", rollout_of_two_heads(COPIED), "¼ to B, to both A and to D, which does nothing"),
    },
)
def induction() -> nn.Module:
    """A head that reads the previous word, and one that finds the word after the last word's first occurrence."""
    words = range(WORDS)
    previous = Head(3 * WORDS, {}, {}, {(WORDS + w, w): 1.0 for w in words}, to_the_previous(TOKENS))
    query, key = {(w, w): LARGE for w in words}, {(w, WORDS + w): 1.0 for w in words}
    copy = Head(3 * WORDS, query, key, {(2 * WORDS + w, w): 1.0 for w in words}, to_itself(TOKENS))
    return HandBuilt([previous, copy], slice(2 * WORDS + 1, 2 * WORDS + 2))


# --- subject–verb agreement -------------------------------------------------------------------------------------------

NOUN, PREPOSITION, NUMBER, GOVERNED, AGREED = range(5)
"""Coordinates; a noun is governed if a preposition stands before it."""
SUBJECT, BEFORE, DISTRACTOR = 1, 2, 3
"""In "the keys to the cabinet are", without its second article: keys, to and cabinet."""


def sentence(preposition: bool) -> Tensor:
    """An article, a noun, a preposition or another word, a noun, and the verb, whose number is asked for."""
    rows = torch.zeros(1, TOKENS, AGREED + 1)
    rows[:, [SUBJECT, DISTRACTOR], NOUN] = rows[:, [SUBJECT, DISTRACTOR], NUMBER] = 1
    rows[:, BEFORE, PREPOSITION] = float(preposition)
    rows[:, DISTRACTOR, GOVERNED] = float(not preposition)
    return rows


def numbers(x: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers m of the subject and d of the distractor, ``(batch,)``, singular below 0 and plural above."""
    return x[:, SUBJECT, NUMBER], x[:, DISTRACTOR, NUMBER]


def of_subject(share: float) -> Map:
    return lambda x: at(x, (SUBJECT, share * numbers(x)[0]))


def by_preposition_right(x: Tensor) -> Tensor:
    m, d = numbers(x)
    return at(x, (SUBJECT, (11 * m - d) / 12), (BEFORE, (m - 2 * d) / 6), (DISTRACTOR, (5 * d - m) / 12))


def by_preposition_removed(x: Tensor) -> Tensor:
    m, d = numbers(x)
    return at(x, (SUBJECT, m), (BEFORE, (m - d) / 2))


def agreement_model() -> nn.Module:
    """A head that reads whether a preposition stands before, and one that finds a noun that is not governed."""
    previous = Head(AGREED + 1, {}, {}, {(GOVERNED, PREPOSITION): 1.0}, to_the_previous(TOKENS))
    key, value = {(0, NOUN): 1.0, (0, GOVERNED): -2.0}, {(AGREED, NUMBER): 1.0}
    find = Head(AGREED + 1, {}, key, value, to_itself(TOKENS), query_bias=[LARGE])
    return HandBuilt([previous, find], slice(AGREED, AGREED + 1))


FOUND_FROM_A_QUARTER = "the key grows with α: it is found from α = ¼ on, by a jump that no node sees"
ALSO_TO_NEIGHBOURS = "¼ to the subject, and to the words before subject and verb, of which one is the distractor"

known_answer(
    "agreement",
    sentences_of(sentence(preposition=False), slice(NUMBER, GOVERNED)),
    right=of_subject(1),
    why="the distractor says by its own form that it is no subject: no set of words lets the verb agree with it",
    cite=ARRAS,
    expected={
        **right_of(GRADIENTS, A_CONSTANT),
        **right_of("loo", "without the subject the output is 0, and no other word changes it"),
        **wrong_of(HALVES, of_subject(1 / 2), HALF_IS_LOST),
        **wrong_of("integrated_gradients", along_the_path(of_subject(1), SELF / LARGE), FOUND_FROM_A_QUARTER),
        **wrong_of("attention_rollout", rollout_of_two_heads(SUBJECT), ALSO_TO_NEIGHBOURS),
    },
)(agreement_model)

known_answer(
    "agreement_by_preposition",
    sentences_of(sentence(preposition=True), slice(NUMBER, GOVERNED)),
    right=by_preposition_right,
    why="v is m with the subject, but ½(m + d) with both nouns and no preposition, and d with the distractor alone: "
    "Shapley's sum over the sets of these three; no other word changes v",
    cite=ARRAS,
    expected={
        **wrong_of(GRADIENTS, of_subject(1), "of derivative 0: what decides between the nouns is not seen"),
        **wrong_of("loo", by_preposition_removed, "of the distractor only what it does while the preposition is there"),
        **wrong_of(HALVES, of_subject(1 / 2), HALF_IS_LOST),
        **wrong_of("integrated_gradients", along_the_path(of_subject(1), SELF / LARGE), FOUND_FROM_A_QUARTER),
        **wrong_of("attention_rollout", rollout_of_two_heads(SUBJECT), ALSO_TO_NEIGHBOURS),
    },
)(agreement_model)
