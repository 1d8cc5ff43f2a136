"""One part of hisearch at a time, held against recorded truth."""
