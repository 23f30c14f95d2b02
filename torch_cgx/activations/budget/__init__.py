"""A budget of bytes in place of settings: `fit` makes a plan, `apply` carries it out."""
