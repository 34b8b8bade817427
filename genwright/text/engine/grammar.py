"""Grammars: which tokens a schema, a regular expression or a grammar allows next, by llguidance."""

import json
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from genwright.errors import UserError
from genwright.text.engine.request import SamplingParams
from genwright.text.engine.schema import check_schema, explain, one_line
from genwright.text.tokenizer.tokenizer import Tokenizer
from genwright.text.tool_calls.lark import JSON_OPTIONS

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher, LLTokenizer

_KEPT = 64  # compiled grammars
_LEXER_FUEL = 50_000_000  # about a second of compiling at most, which patterns that count words need
Masks = NDArray[np.int32]


class Grammar:
    """The state of one request's grammar, after the tokens of its answer."""

    def __init__(self, matcher: "LLMatcher", words: int):
        self.matcher, self.words = matcher, words  # the int32 words of a mask
        self._forced: list[int] | None = None

    def copy(self) -> "Grammar":
        return Grammar(self.matcher.deep_copy(), self.words)

    def advance(self, token: int) -> bool:
        """Add the next token; returns whether the answer is complete."""
        self._forced = None
        if not self.matcher.consume_token(token) or self.matcher.is_error():  # an end is accepted even after an error
            reason = one_line(self.matcher.get_error().partition("<state>")[0])
            raise UserError(
                f"The grammar cannot continue: {reason}; it is too complex, it allows nothing here, or logit_bias "
                "forbids what it requires."
            )
        return bool(self.matcher.is_stopped())

    def mask(self) -> Masks:
        """The tokens that may come next, int32 [1, words]."""
        mask = np.zeros((1, self.words), np.int32)
        self.matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        return mask

    def forced(self) -> list[int]:
        """The tokens that must come next, whatever the logits are."""
        if self._forced is None:
            self._forced = self.matcher.compute_ff_tokens()
        return self._forced


class Grammars:
    """Compiles the grammars of requests for one vocabulary; for any thread."""

    def __init__(self, tokenizer: Tokenizer | None, vocab_size: int, eos_ids: Sequence[int]):
        self._tokenizer, self._vocab_size, self._eos_ids = tokenizer, vocab_size, list(eos_ids)
        self._compile = lru_cache(_KEPT)(self._compiled)

    def new(self, params: SamplingParams) -> Grammar | None:
        """The grammar of a request that has sampled nothing yet; None if its tokens are free."""
        if params.schema is not None:
            return self._compile("schema", _json_text(params.schema)).copy()
        if params.regex is not None:
            return self._compile("regex", params.regex).copy()
        return None if params.grammar is None else self._compile("grammar", params.grammar).copy()

    def _compiled(self, kind: str, text: str) -> Grammar:
        words = (self._vocabulary.vocab_size + 31) // 32
        if kind == "schema":
            schema = check_schema(text)
            matcher = self._matcher(_schema_grammar(schema))
            if error := matcher.get_error():
                raise UserError(explain(schema, error, lambda part: self._matcher(_schema_grammar(part)).get_error()))
        else:
            matcher = self._matcher(_grammar(kind, text))
            if error := matcher.get_error():
                raise UserError(f"The {kind} is not valid: {one_line(error)}.")
        grammar = Grammar(matcher, words)
        grammar.mask()
        if matcher.is_error():
            raise UserError(f"The {kind} allows no answer.")
        return grammar

    def _matcher(self, grammar: str) -> "LLMatcher":
        llguidance = _llguidance()
        limits = llguidance.LLParserLimits(initial_lexer_fuel=_LEXER_FUEL)
        matcher: LLMatcher = llguidance.LLMatcher(self._vocabulary, grammar, log_level=0, limits=limits)
        return matcher

    @cached_property
    def _vocabulary(self) -> "LLTokenizer":
        if self._tokenizer is None:
            raise UserError("This checkpoint has no tokenizer, so its answers cannot follow a schema or grammar.")
        llguidance = _llguidance()
        size = max(self._vocab_size, self._tokenizer.vocab_size)
        source: Any = self._tokenizer.serialized() or _Pieces(self._tokenizer, self._eos_ids)
        try:
            vocabulary: LLTokenizer = llguidance.LLTokenizer(source, n_vocab=size, eos_token=self._eos_ids)
        except (ValueError, TypeError) as error:
            raise UserError(f"This tokenizer cannot follow a schema or grammar: {one_line(str(error))}.") from error
        return vocabulary


class _Pieces:
    """A vocabulary without a tokenizer.json, in the form that llguidance reads."""

    def __init__(self, tokenizer: Tokenizer, eos_ids: Sequence[int]):
        self.tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.special_ids)
        self.bos_token_id, self.eos_token_id = tokenizer.bos_id, eos_ids[0]
        self.is_tokenizer_wrapper = True
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        text = text if isinstance(text, str) else text.decode(errors="replace")
        return self._tokenizer.encode_inside(text)


class StepMasks:
    """Computes the masks of a step's rows in llguidance's threads, without Python's lock."""

    def compute(self, rows: Sequence[tuple[Grammar, Sequence[int]]]) -> Masks:
        """The masks after each grammar's state, and after each of the tokens proposed there; int32 [masks, words]."""
        masks = np.full((sum(1 + len(tokens) for _, tokens in rows), rows[0][0].words), -1, np.int32)
        alone, proposed, first = [], [], 0
        for grammar, tokens in rows:
            if tokens:
                proposed.append((grammar.matcher, first, list(tokens)))
            else:
                alone.append((grammar.matcher, first))
            first += 1 + len(tokens)
        place = masks.ctypes.data, masks.strides[0], len(masks)
        if len(rows) == len(alone) == 1:  # another thread would take longer
            alone[0][0].unsafe_compute_mask_ptr(*place[:2])
        elif alone:
            self._executor.unsafe_compute_mask_ptr(alone, *place)
        if proposed:
            self._executor.unsafe_compute_mask_ptr_with_draft_token(proposed, *place)
        return masks

    @cached_property
    def _executor(self) -> "LLExecutor":
        executor: LLExecutor = _llguidance().LLExecutor()
        return executor


def _json_text(schema: Any) -> str:
    try:
        return schema if isinstance(schema, str) else json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"The schema is not plain data: {one_line(str(error))}.") from None


def _schema_grammar(schema: Any) -> str:
    try:
        return str(_llguidance().LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=JSON_OPTIONS))
    except (ValueError, RecursionError) as error:
        raise UserError(f"The schema cannot be followed: {one_line(str(error))}.") from None


def _grammar(kind: str, text: str) -> str:
    """llguidance's form of a regular expression, or of a grammar in Lark or GBNF."""
    try:
        return str(_llguidance().grammar_from(kind, text))
    except ValueError as error:
        raise UserError(f"The {kind} is not valid: {one_line(str(error))}.") from None


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError:
        raise UserError(
            "Answers that follow a schema, regex or grammar need llguidance; install it with pip install "
            "'genwright[serve]'."
        ) from None
    return llguidance
