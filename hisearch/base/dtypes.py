"""Array types by their element: 64-bit floats, signed and unsigned integers, truth values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F8 = npt.NDArray[np.float64]
I8 = npt.NDArray[np.int64]
I4 = npt.NDArray[np.int32]
BOOL = npt.NDArray[np.bool_]
U8 = npt.NDArray[np.uint64]
