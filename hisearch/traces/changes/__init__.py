"""One trace made from others: resampled, merged, ordered, cut, spread, replayed."""
