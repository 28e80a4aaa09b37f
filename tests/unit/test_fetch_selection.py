"""What is wanted of a checkpoint, by names."""

from __future__ import annotations

import pytest

from ckptstore.fetch.selection import Selection, is_weight


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.q_proj.weight",
        "app.model.norm.weight",
        "model.embed_tokens.weight",
        "model.step_embed.weight",
        "net.optimus.weight",
        "ema.model.w",
        "model-00001-of-00002.safetensors",
        "config.json",
        "scheduler/scheduler_config.json",  # A diffusion model's.
        "tokenizer.json",
        "mp_rank_00_model_states.pt",
    ],
)
def test_what_a_model_needs_is_a_weight(name: str) -> None:
    assert is_weight(name)


@pytest.mark.parametrize(
    "name",
    [
        "optimizer.state.layers.0.weight.exp_avg",
        "optim.param_groups",
        "app.optimizer.state.0",
        "app.lr_scheduler",
        "scheduler.last_epoch",
        "rng_state",
        "cuda_rng_state",
        "dataloader.position",
        "step",
        "train.epoch",
        "optimizer.pt",
        "scheduler.pt",
        "rng_state_0.pth",
        "trainer_state.json",
        "training_args.bin",
        "global_step100/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "optimizer/weights.bin",
        "mp_rank_00/distrib_optim.pt",
    ],
)
def test_what_only_training_needs_is_not(name: str) -> None:
    assert not is_weight(name)


def test_what_is_excluded_is_out_even_if_it_is_asked_for() -> None:
    selection = Selection(patterns=("model.*",), excluded=("*.bias",))
    assert "model.w" in selection
    assert "model.bias" not in selection
    assert "other.w" not in selection
