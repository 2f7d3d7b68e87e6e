"""Pictures for comparisons of pixels."""

import numpy as np


def picture(rng, width, height, most_pitch=2):
    """Edges, gradients and noise: hard for a resampler that rounds differently."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [
        127 + 127 * np.sin(x * rng.uniform(0.05, most_pitch) + y * rng.uniform(0.05, most_pitch))
        for _ in range(3)
    ]
    image = np.stack(waves, axis=2)
    image[y % 17 < 8] = 255 - image[y % 17 < 8]
    noise = np.random.default_rng(rng.randrange(1 << 30)).normal(0, 20, image.shape)
    return np.clip(image + noise, 0, 255).astype(np.uint8)
