"""What a model keeps for the backward pass, by module and by kind."""
