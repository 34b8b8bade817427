"""Every flag of consistency_models' scripts: its default, and another value as a text and as it is read."""

from typing import Any

Flag = tuple[Any, str, Any]

MODEL: dict[str, Flag] = {
    "sigma_min": (0.002, "0.01", 0.01),
    "sigma_max": (80.0, "40", 40.0),
    "image_size": (64, "32", 32),
    "num_channels": (128, "64", 64),
    "num_res_blocks": (2, "3", 3),
    "num_heads": (4, "2", 2),
    "num_heads_upsample": (-1, "1", 1),
    "num_head_channels": (-1, "16", 16),
    "attention_resolutions": ("32,16,8", "16,4", "16,4"),
    "channel_mult": ("", "1,2,2", "1,2,2"),
    "dropout": (0.0, "0.1", 0.1),
    "class_cond": (False, "True", True),
    "use_checkpoint": (False, "t", True),
    "use_scale_shift_norm": (True, "no", False),
    "resblock_updown": (False, "y", True),
    "use_fp16": (False, "1", True),
    "use_new_attention_order": (False, "yes", True),
    "learn_sigma": (False, "true", True),
    "weight_schedule": ("karras", "uniform", "uniform"),
}
SAMPLE: dict[str, Flag] = {
    "training_mode": ("edm", "consistency_training", "consistency_training"),
    "generator": ("determ", "determ-indiv", "determ-indiv"),
    "clip_denoised": (True, "False", False),
    "num_samples": (10_000, "4", 4),
    "batch_size": (16, "2", 2),
    "sampler": ("heun", "multistep", "multistep"),
    "s_churn": (0.0, "1", 1.0),
    "s_tmin": (0.0, "0.05", 0.05),
    "s_tmax": (float("inf"), "50", 50.0),
    "s_noise": (1.0, "1.003", 1.003),
    "steps": (40, "5", 5),
    "model_path": ("", "model.pt", "model.pt"),
    "seed": (42, "7", 7),
}
TRAIN: dict[str, Flag] = {
    "data_dir": ("", "images", "images"),
    "schedule_sampler": ("uniform", "lognormal", "lognormal"),
    "lr": (1e-4, "1e-3", 1e-3),
    "weight_decay": (0.0, "0.01", 0.01),
    "lr_anneal_steps": (0, "100", 100),
    "global_batch_size": (2048, "8", 8),
    "batch_size": (-1, "4", 4),
    "microbatch": (-1, "2", 2),
    "ema_rate": ("0.9999", "0.9,0.99", "0.9,0.99"),
    "log_interval": (10, "1", 1),
    "save_interval": (10_000, "5", 5),
    "resume_checkpoint": ("", "model000005.pt", "model000005.pt"),
    "use_fp16": (False, "1", True),
    "fp16_scale_growth": (1e-3, "0.01", 0.01),
}
CM_TRAIN: dict[str, Flag] = {
    "teacher_model_path": ("", "edm.pt", "edm.pt"),
    "teacher_dropout": (0.1, "0.2", 0.2),
    "training_mode": ("consistency_distillation", "progdist", "progdist"),
    "target_ema_mode": ("fixed", "adaptive", "adaptive"),
    "scale_mode": ("fixed", "progressive", "progressive"),
    "total_training_steps": (600_000, "10", 10),
    "start_ema": (0.0, "0.95", 0.95),
    "start_scales": (40, "2", 2),
    "end_scales": (40, "150", 150),
    "distill_steps_per_iter": (50_000, "5", 5),
    "loss_norm": ("lpips", "l2", "l2"),
}
SEARCH: dict[str, Flag] = {
    "begin": ("0", "0,5", "0,5"),
    "end": ("39", "20,39", "20,39"),
    "ref_batch": ("", "reference.npz", "reference.npz"),
}
FLAGS: dict[str, dict[str, Flag]] = {
    "image_sample": MODEL | SAMPLE | {"ts": ("", "0,2,4", "0,2,4")},
    "cm_train": MODEL | TRAIN | CM_TRAIN,
    "edm_train": MODEL | TRAIN,
    "ternary_search": MODEL
    | SAMPLE
    | SEARCH
    | {"training_mode": ("consistency_distillation", "consistency_training", "consistency_training")},
}
