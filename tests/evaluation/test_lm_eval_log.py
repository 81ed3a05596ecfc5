"""lm-eval is silent, its warnings are collected, and afterwards its log is as before."""

import logging

from datasets.utils.logging import is_progress_bar_enabled

from wedlm.evaluation.lm_eval_log import quiet_lm_eval


def test_warnings_are_collected_once(caplog):
    logger, had_bars = logging.getLogger("lm_eval"), is_progress_bar_enabled()
    before = logger.level, logger.propagate, list(logger.handlers)
    with quiet_lm_eval() as collector:
        logger.info("told")
        logger.warning("first\n  line")
        logging.getLogger("lm_eval.tasks").warning("second")
        logger.warning("first line")
        assert not is_progress_bar_enabled()
    assert list(collector.warnings) == ["first line", "second"] and not caplog.records
    assert (logger.level, logger.propagate, logger.handlers) == before and is_progress_bar_enabled() == had_bars
