"""The chosen deployment as launch scripts of the serving engines."""
