"""The search held against an enumerated space and against flat samplers."""
