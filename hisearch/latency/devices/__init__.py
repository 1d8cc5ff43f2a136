"""Workers of several devices: operators mapped to devices, transfers between them, overlapped phases."""
