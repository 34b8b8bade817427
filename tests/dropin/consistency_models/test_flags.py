"""Every flag of the original's scripts: the list is the original's, every flag is read, and does what it says."""

import importlib
import math
import sys
from pathlib import Path

import pytest
from dropin.consistency_models.flag_list import FLAGS, MODEL
from dropin.consistency_models.tiny import dropin, run

CASES = [(script, flag) for script, found in FLAGS.items() for flag in found]


@pytest.mark.parametrize("script", FLAGS)
def test_the_list_is_the_originals(script: str, original: Path, tmp_path: Path) -> None:
    """The original's parser, printed by a process in which what it imports and cannot is stubbed."""
    print_parser = tmp_path / "print_parser.py"
    print_parser.write_text(
        "import runpy, sys, unittest.mock as mock\n"
        "for name in ('mpi4py', 'blobfile', 'piq', 'torchvision', 'torchvision.transforms', 'evaluations',\n"
        "             'evaluations.th_evaluator'):\n"
        "    sys.modules[name] = mock.MagicMock()\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "parser = runpy.run_path(sys.argv[2])['create_argparser']()\n"
        "print({action.dest: action.default for action in parser._actions if action.dest != 'help'})\n"
    )
    done = run(print_parser, original, original / "scripts" / f"{script}.py", log=tmp_path / "log")
    assert eval(done.stdout, {"inf": math.inf}) == {flag: default for flag, (default, _, _) in FLAGS[script].items()}


@pytest.mark.parametrize(("script", "flag"), CASES)
def test_every_flag_is_read(script: str, flag: str) -> None:
    parser = importlib.import_module(script).create_argparser()
    default, text, value = FLAGS[script][flag]
    assert getattr(parser.parse_args([]), flag) == default
    assert getattr(parser.parse_args([f"--{flag}", text]), flag) == value != default


def test_no_flag_is_ours_alone_but_the_loss_norm() -> None:
    for script, found in FLAGS.items():
        ours = vars(importlib.import_module(script).create_argparser().parse_args([]))
        assert ours.keys() - found.keys() <= {"loss_norm"}


def test_a_wrong_truth_value_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        importlib.import_module("edm_train").create_argparser().parse_args(["--class_cond", "perhaps"])
    assert "expected true or false, not 'perhaps'" in capsys.readouterr().err


# Where each of the model's flags arrives: a field of the UNet's shape, an attribute of UNet or diffusion.
ARRIVES = {
    "sigma_min": "diffusion.sigma_min",
    "sigma_max": "diffusion.sigma_max",
    "weight_schedule": "diffusion.weight_schedule",
    "use_checkpoint": "model.recompute",
    **{
        flag: f"model.config.{flag}"
        for flag in (
            "image_size", "num_channels", "num_res_blocks", "num_heads", "num_heads_upsample", "num_head_channels",
            "dropout", "use_scale_shift_norm", "resblock_updown",
        )
    },
}  # fmt: skip
OTHERWISE = {
    "attention_resolutions": ("model.config.attention_resolutions", (16, 4)),
    "channel_mult": ("model.config.channel_mult", (1, 2, 2)),
    "class_cond": ("model.config.num_classes", 1000),
    "use_fp16": ("str(model.dtype)", "torch.float16"),
    "use_new_attention_order": ("model.config", None),  # changes nothing, as in the original
    "learn_sigma": ("", "learn_sigma, which needs 6"),
}


@pytest.mark.parametrize("flag", MODEL)
def test_the_models_flags_reach_the_model(flag: str) -> None:
    from cm.script_util import create_model_and_diffusion, model_and_diffusion_defaults
    from genwright.errors import UserError

    small = model_and_diffusion_defaults() | {"image_size": 64, "num_channels": 32, "num_res_blocks": 1}
    value = 96 if flag == "num_channels" else 128 if flag == "image_size" else MODEL[flag][2]
    if flag == "learn_sigma":
        with pytest.raises(UserError, match=OTHERWISE[flag][1]):
            create_model_and_diffusion(**small | {flag: value})
        return
    before = create_model_and_diffusion(**small)
    after = create_model_and_diffusion(**small | {flag: value})
    where, expected = (ARRIVES[flag], value) if flag in ARRIVES else OTHERWISE[flag]
    found = [eval(where, {"model": model, "diffusion": diffusion}) for model, diffusion in (before, after)]
    if flag == "use_new_attention_order":
        assert found[0] == found[1]
    else:
        assert found[1] == expected != found[0]


def test_the_commands_name_their_mistakes(tmp_path: Path, tiny_pt: Path) -> None:
    done = dropin("image_sample", "--model_path", "none.pt", log=tmp_path / "log", code=1)
    assert done.stderr == "genwright: There is no checkpoint file none.pt.\n"
    done = dropin("sample", log=tmp_path / "log", code=1)
    assert done.stderr.startswith("genwright: consistency_models has no command 'sample'; its commands are image_sam")


def test_scripts_that_need_absent_packages_are_replaced_whole(tmp_path: Path, monkeypatch, capsys) -> None:
    from genwright.dropin.run import run_script
    from genwright.errors import UserError

    for name in ("ternary_search", "evaluations/evaluator"):
        script = tmp_path / f"{name}.py"
        script.parent.mkdir(exist_ok=True)
        script.write_text("import mpi4py, tensorflow\n")
        monkeypatch.delitem(sys.modules, name.replace("/", "."), raising=False)
        monkeypatch.setattr(sys, "argv", [])
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.setenv("PYTHONPATH", "")
        with pytest.raises((UserError, SystemExit)):
            run_script("consistency_models", str(script), [])
        assert "so Genwright's" in capsys.readouterr().err
