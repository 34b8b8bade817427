"""The UNet, its shapes, its files, and the denoiser around it."""
