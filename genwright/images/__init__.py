"""Images: the UNet, the denoiser, samplers, schedules, seeds and metrics."""
