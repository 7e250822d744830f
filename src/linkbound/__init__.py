"""linkbound: does splitting this model over these GPUs pay, and does the link matter for it?"""

__version__ = "0.1.0"
