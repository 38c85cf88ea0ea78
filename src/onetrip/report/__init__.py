"""Floor 8: plans as a user meets them: the class Plan, text, JSON. Must not know how to find one.

Only `schema` knows the JSON; `text` says what of it is shown, `layout` and `page` how that looks.
"""
