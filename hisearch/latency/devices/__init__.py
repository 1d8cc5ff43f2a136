"""Workers of several devices: operators mapped to them, transfers between them, phases side by side."""
