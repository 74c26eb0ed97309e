"""rcray: Ray sweeps over preference objectives, the disentanglement band, and reward calibration."""

__version__ = "0.1.0"
