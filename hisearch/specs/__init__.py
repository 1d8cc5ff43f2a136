"""Every YAML kind as a typed, strict model; catalogue look-up; overrides; errors with file, line and key."""
