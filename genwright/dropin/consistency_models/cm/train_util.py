"""The training loops, under the name of the original's module."""

from cm.cm_train_loop import CMTrainLoop
from cm.train_loop import (
    TrainLoop,
    find_ema_checkpoint,
    get_blob_logdir,
    log_loss_dict,
    parse_resume_step_from_filename,
)

__all__ = [
    "CMTrainLoop", "TrainLoop", "find_ema_checkpoint", "get_blob_logdir", "log_loss_dict",
    "parse_resume_step_from_filename",
]  # fmt: skip
