"""The bins in which inter-token latencies are counted (see ``gaps``)."""

#: Bins per octave, and the binary exponent (that of ``math.frexp``) of the first bin and behind the last: 1 us, 36 h.
PER_OCTAVE, LOWEST, HIGHEST = 128, -19, 18
BINS = (HIGHEST - LOWEST) * PER_OCTAVE
