"""Environment variables: what is read, and what is said about what is not."""

from __future__ import annotations

import pytest

from headstock.core.errors import InvalidInput
from headstock.plugins import VARIABLES, Variable, check_environment
from headstock.plugins.environment import read, switched_on


def test_a_misspelt_variable_is_named_with_the_nearest_one_and_its_flag():
    (warning,) = check_environment({"HEADSTOCK_ATTENTION_BACKND": "TRITON", "HOME": "/root"})
    assert warning == (
        "HEADSTOCK_ATTENTION_BACKND is set, but nothing reads it; "
        "did you mean HEADSTOCK_ATTENTION_BACKEND (or the flag --attention-backend)?"
    )


def test_a_variable_like_no_other_is_met_with_all_of_them():
    (warning,) = check_environment({"HEADSTOCK_QQQ": "1"})
    assert "HEADSTOCK_QQQ is set, but nothing reads it; known are " in warning
    assert all(variable.name in warning for variable in VARIABLES)


def test_strict_mode_makes_it_an_error():
    with pytest.raises(InvalidInput, match="HEADSTOCK_ATTENTION_BACKND: is set, but nothing reads it; did you mean"):
        check_environment({"HEADSTOCK_ATTENTION_BACKND": "TRITON", "HEADSTOCK_ENV_STRICT": "1"})


def test_nothing_is_said_about_variables_that_are_read():
    assert check_environment({variable.name: "1" for variable in VARIABLES}) == ()


def test_vllms_variable_is_said_not_to_be_read():
    (warning,) = check_environment({"VLLM_ATTENTION_BACKEND": "FLASH_ATTN"})
    assert "VLLM_ATTENTION_BACKEND is set, but Headstock does not read it" in warning
    assert "HEADSTOCK_ATTENTION_BACKEND" in warning
    assert "--attention-backend" in warning


def test_vllms_variable_beside_ours_is_nobodys_mistake():
    both = {"VLLM_ATTENTION_BACKEND": "FLASH_ATTN", "HEADSTOCK_ATTENTION_BACKEND": "sdpa"}
    assert check_environment(both) == ()


def test_vllms_variable_is_no_error_in_strict_mode_since_vllm_may_run_beside():
    assert len(check_environment({"VLLM_ATTENTION_BACKEND": "FLASH_ATTN", "HEADSTOCK_ENV_STRICT": "1"})) == 1


RETIRED = (*VARIABLES, Variable(name="HEADSTOCK_BACKEND", meaning="", successor="HEADSTOCK_ATTENTION_BACKEND"))


def test_a_retired_variable_is_honoured_with_a_warning():
    environ = {"HEADSTOCK_BACKEND": "sdpa"}
    assert read("HEADSTOCK_ATTENTION_BACKEND", environ, RETIRED) == "sdpa"
    (warning,) = check_environment(environ, RETIRED)
    assert warning == "HEADSTOCK_BACKEND is retired and counts as HEADSTOCK_ATTENTION_BACKEND; set that instead"


def test_a_retired_variable_that_contradicts_its_successor_is_refused():
    environ = {"HEADSTOCK_BACKEND": "sdpa", "HEADSTOCK_ATTENTION_BACKEND": "reference"}
    with pytest.raises(InvalidInput, match="said twice: HEADSTOCK_ATTENTION_BACKEND=reference, HEADSTOCK_BACKEND=sdpa"):
        read("HEADSTOCK_ATTENTION_BACKEND", environ, RETIRED)


@pytest.mark.parametrize("blank", ["", "  "])
def test_blank_is_not_set(blank):
    assert read("HEADSTOCK_ATTENTION_BACKEND", {"HEADSTOCK_ATTENTION_BACKEND": blank}) == ""


def test_a_switch_that_is_neither_on_nor_off_is_refused():
    with pytest.raises(InvalidInput, match="HEADSTOCK_PLUGINS_STRICT: is 'maybe', neither 1 nor 0"):
        switched_on("HEADSTOCK_PLUGINS_STRICT", {"HEADSTOCK_PLUGINS_STRICT": "maybe"})


@pytest.mark.parametrize("name", ["headstock_attention_backend", "Headstock_Attention_Backend"])
def test_case_matters_in_the_environment_and_that_is_told(name):
    (warning,) = check_environment({name: "sdpa"})
    assert f"{name} is set, but nothing reads it; did you mean HEADSTOCK_ATTENTION_BACKEND" in warning


def test_a_misspelt_prefix_is_told_of_but_may_be_somebody_elses():
    environ = {"HEADSTOK_ATTENTION_BACKEND": "sdpa", "HEADSTOCK_ENV_STRICT": "1"}
    (warning,) = check_environment(environ)
    assert warning == (
        "HEADSTOK_ATTENTION_BACKEND is set, but nothing here reads it; did you mean HEADSTOCK_ATTENTION_BACKEND?"
    )


def test_the_variables_of_other_programs_are_left_alone():
    others = (
        "PATH",
        "PYTHONPATH",
        "OMP_NUM_THREADS",
        "CUDA_VISIBLE_DEVICES",
        "HF_HOME",
        "VLLM_PLUGINS",
        "LLM_LOAD_PLUGINS",
    )
    assert check_environment(dict.fromkeys(others, "1")) == ()


def test_every_variable_has_a_meaning():
    assert all(variable.meaning and variable.name.startswith("HEADSTOCK_") for variable in VARIABLES)
