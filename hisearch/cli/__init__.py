"""The command line: every verb parses, calls the library, prints. Nothing heavy is imported before a verb needs it."""
