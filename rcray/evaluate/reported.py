"""lm-eval's own view of a transformers model, which also says how far its requests are."""

from typing import Any

from rcray.extras import explained_imports
from rcray.records.progress import EVALUATION, report

with explained_imports():
    from lm_eval.models.huggingface import HFLM


class ReportedLM(HFLM):  # type: ignore[misc]
    """Every row that is read or continued counts as one request; several that share a row end earlier than was said."""

    _asked = _done = 0

    def _loglikelihood_tokens(self, requests: Any, *args: Any, **kwargs: Any) -> Any:
        self._begin(len(requests))
        return super()._loglikelihood_tokens(requests, *args, **kwargs)

    def generate_until(self, requests: Any, *args: Any, **kwargs: Any) -> Any:
        """As lm-eval does it."""
        self._begin(len(requests))
        return super().generate_until(requests, *args, **kwargs)

    def _model_call(self, inps: Any, *args: Any, **kwargs: Any) -> Any:
        logits = super()._model_call(inps, *args, **kwargs)
        self._advance(len(inps))
        return logits

    def _model_generate(self, context: Any, *args: Any, **kwargs: Any) -> Any:
        tokens = super()._model_generate(context, *args, **kwargs)
        self._advance(len(context))
        return tokens

    def _begin(self, requests: int) -> None:
        self._asked, self._done = requests, 0
        report(EVALUATION, 0, requests)

    def _advance(self, rows: int) -> None:
        if self._asked:  # else it is trying batch sizes
            self._done = min(self._asked, self._done + rows)
            report(EVALUATION, self._done, self._asked)
