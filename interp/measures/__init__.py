"""One question a file, answered by pure functions on tensors: what heads rest on, whether weights obey the ratio rule, what heads do.

Nothing here reads a model, and nothing here writes a page.
"""
