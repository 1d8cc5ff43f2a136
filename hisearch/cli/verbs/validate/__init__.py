"""``hisearch validate``: ``app`` registers its commands; what is held against recorded truth has a module each."""
