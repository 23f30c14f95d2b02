"""What compression makes of trainings and of their gradients."""
