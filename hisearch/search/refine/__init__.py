"""What follows the stages: neighbours of the recommendation, the front widened with a surrogate, alternatives.

Imports all of the above.
"""
