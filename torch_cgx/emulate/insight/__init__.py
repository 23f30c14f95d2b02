"""Where formats hurt a model: by layer, kind of tensor and step."""
