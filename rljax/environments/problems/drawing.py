"""Pictures inside a compiled program: masks of shapes, bars, lines and characters, painted one over the other.

A mask is ``[..., H, W]`` bool, where ``...`` is the common shape of its integer arguments; H = W = ``pixels``, and
places are in pixels from the left and from the top. There are no grey edges, so pixels of a colour can be counted.
"""

import functools

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

COLOURS = {
    "red": (230, 40, 40),
    "green": (40, 190, 70),
    "blue": (60, 110, 255),
    "yellow": (250, 220, 50),
    "white": (255, 255, 255),
    "pink": (255, 120, 220),
}
GREY, LIGHT = (80, 80, 80), (150, 150, 150)
SHAPES = ("circle", "square", "triangle", "cross", "diamond")
# 3x5 pixels, row by row from the top, the left pixel of a row the highest of its three bits
_FONT = {
    "0123456789": "75557 26227 71747 71717 55711 74717 74757 71122 75757 75717",
    "ABCDEFGHIJKLM": "25755 65656 34443 65556 74647 74644 34553 55755 72227 11152 55655 44447 57755",
    "NOPQRSTUVWXYZ": "65555 25552 65644 25573 65655 34216 72222 55557 55552 55775 55255 55222 71247",
}


def palette() -> jax.Array:
    """Return the colours as a table ``[colours, 3]`` uint8."""
    return jnp.asarray([*COLOURS.values()], jnp.uint8)


def blank(rows: int, pixels: int) -> jax.Array:
    """Return black pictures ``[rows, H, W, 3]`` uint8."""
    return jnp.zeros((rows, pixels, pixels, 3), jnp.uint8)


def paint(picture: jax.Array, mask: jax.Array, colour: ArrayLike | tuple[int, int, int]) -> jax.Array:
    """Return pictures ``[P, H, W, 3]`` with a colour, ``[P, 3]`` or one for all, where a mask ``[P, H, W]`` is set."""
    colour = jnp.broadcast_to(jnp.asarray(colour, jnp.uint8), (len(picture), 3))
    return jnp.where(mask[..., None], colour[:, None, None, :], picture)


def _grid(pixels: int) -> tuple[jax.Array, jax.Array]:
    """Return the places of pixels: from the left ``[1, W]``, from the top ``[H, 1]``."""
    return jnp.arange(pixels)[None, :], jnp.arange(pixels)[:, None]


@functools.partial(jnp.vectorize, excluded=(0,), signature="(),(),(),()->(h,w)")
def rectangle(pixels: int, left: jax.Array, top: jax.Array, right: jax.Array, bottom: jax.Array) -> jax.Array:
    """Return the mask of rectangles; the edges belong to them."""
    across, down = _grid(pixels)
    return (left <= across) & (across <= right) & (top <= down) & (down <= bottom)


@functools.partial(jnp.vectorize, excluded=(0,), signature="(),(),(),()->(h,w)")
def shape(pixels: int, kind: jax.Array, x: jax.Array, y: jax.Array, radius: jax.Array) -> jax.Array:
    """Return the mask of ``SHAPES[kind]`` inside the square of side 2 radius + 1 around (x, y)."""
    across, down = (place - centre for place, centre in zip(_grid(pixels), (x, y), strict=True))
    wide, high = jnp.abs(across), jnp.abs(down)
    masks = (
        wide**2 + high**2 <= radius**2 + 1,
        jnp.maximum(wide, high) <= radius,
        (high <= radius) & (2 * wide <= down + radius),
        (jnp.minimum(wide, high) <= radius // 4) & (jnp.maximum(wide, high) <= radius),
        wide + high <= radius,
    )
    return jnp.any(jnp.stack(masks) & (jnp.arange(len(masks)) == kind)[:, None, None], axis=0)


@functools.partial(jnp.vectorize, excluded=(0,), signature="(),(),(),()->(h,w)")
def line(pixels: int, x: jax.Array, y: jax.Array, to_x: jax.Array, to_y: jax.Array) -> jax.Array:
    """Return the mask of lines from (x, y) to (to_x, to_y), one pixel wide along their longer side."""
    across, down = _grid(pixels)
    near = 2 * jnp.abs((across - x) * (to_y - y) - (down - y) * (to_x - x))
    inside = (jnp.minimum(x, to_x) <= across) & (across <= jnp.maximum(x, to_x))
    inside &= (jnp.minimum(y, to_y) <= down) & (down <= jnp.maximum(y, to_y))
    return inside & (near <= jnp.maximum(jnp.abs(to_x - x), jnp.abs(to_y - y)))


@functools.partial(jnp.vectorize, excluded=(0, 4), signature="(k),(),()->(h,w)")
def text(pixels: int, code: jax.Array, left: jax.Array, top: jax.Array, scale: int = 1) -> jax.Array:
    """Return the mask of texts, code points ``[..., K]`` of digits and capital letters; others are gaps.

    A character is 3 by 5 squares of ``scale`` pixels, followed by a gap of one.
    """
    across, down = ((place - first) // scale for place, first in zip(_grid(pixels), (left, top), strict=True))
    inside = (across >= 0) & (across < 4 * code.size) & (across % 4 < 3) & (down >= 0) & (down < 5)
    rows = _font()[code][jnp.clip(across // 4, 0, code.size - 1)[0]]  # [W, 5] three bits
    row = jnp.take(rows, jnp.clip(down[:, 0], 0, 4), axis=1).T  # [H, W]
    return inside & (row >> (2 - across % 4) & 1 > 0)


def button(
    picture: jax.Array, box: jax.Array, colour: jax.Array, letter: jax.Array, present: ArrayLike = True
) -> jax.Array:
    """Return pictures ``[P, H, W, 3]`` with a box ``[P, 4]``, left to bottom, and a black letter ``[P]`` in it."""
    pixels, (left, top, right, bottom) = picture.shape[1], box.T
    present = jnp.broadcast_to(jnp.asarray(present), left.shape)[:, None, None]
    picture = paint(picture, rectangle(pixels, left, top, right, bottom) & present, colour)
    mask = text(pixels, letter[:, None], (left + right) // 2 - 1, (top + bottom) // 2 - 2)
    return paint(picture, mask & present, (0, 0, 0))


def _font() -> jax.Array:
    """Return the rows of each character, ``[128, 5]`` int32."""
    glyphs = {ord(c): glyph for names, text in _FONT.items() for c, glyph in zip(names, text.split(), strict=True)}
    return jnp.asarray([[int(row) for row in glyphs.get(c, "00000")] for c in range(128)], jnp.int32)
