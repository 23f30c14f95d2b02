"""Where formats hurt: what casts do to each tensor, and which layer breaks."""
