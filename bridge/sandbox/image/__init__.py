"""Building the runtime image.

Owns the steps of `image build` and the root filesystem of the offline image. Which image runs use
is in `container.image`, speaking to engines in `container.image_engine`; neither imports this.
"""
