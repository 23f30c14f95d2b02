"""Tables of derivatives: fitting them, files, and the shipped ones."""
